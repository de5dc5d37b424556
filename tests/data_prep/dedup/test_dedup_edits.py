"""Edited copies are found as the S-curve says, also by `full`; documents of one form with other contents are kept."""

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
import pytest

from data_prep.dedup.config import DedupConfig, NearDedup, meeting_probability
from data_prep.dedup.texts import shingle
from tests.data_prep.dedup.corpus import dedup, kept_documents

NUM_COPIES = 60
Edit = Callable[[str, np.random.Generator], str]


def share(part: float) -> Edit:
    """Replaces this share of a text's words, at random places."""

    def edit(text: str, generator: np.random.Generator) -> str:
        pieces = text.split(" ")
        count = max(1, round(part * len(pieces)))
        for place in generator.choice(len(pieces), count, replace=False).tolist():
            # A word may stand at the end of a paragraph.
            pieces[place] = "zebra" + pieces[place].lstrip("abcdefghijklmnopqrstuvwxyz")
        return " ".join(pieces)

    return edit


def every_second_paragraph(text: str, generator: np.random.Generator) -> str:
    """Replaces one word in every second paragraph."""
    paragraphs = text.split("\n")
    long = [number for number, own in enumerate(paragraphs) if own.count(" ") > 5]
    for number in long[::2]:
        words = paragraphs[number].split(" ")
        words[int(generator.integers(len(words)))] = "zebra"
        paragraphs[number] = " ".join(words)
    return "\n".join(paragraphs)


EDITS = {"0.5%": share(0.005), "1%": share(0.01), "2%": share(0.02), "5%": share(0.05),
         "paragraphs": every_second_paragraph}  # fmt: skip


def own_texts() -> list[str]:
    """Articles of paragraphs of random words."""
    generator = np.random.Generator(np.random.Philox(9))
    words = ["".join(generator.choice([*"abcdefghijklm"], 6)) for _ in range(4000)]
    return [
        "\n".join(" ".join(generator.choice(words, generator.integers(30, 90))) for _ in range(12))
        for _ in range(NUM_COPIES)
    ]


def check(directory, originals: Sequence[str], edits: Sequence[str]) -> None:
    """Every original once, then a copy of it with each of the edits; who is kept by `near` alone and by `full`."""
    generator = np.random.Generator(np.random.Philox(5))
    edited = [EDITS[name](text, generator) for name in edits for text in originals]
    shards = [list(originals), edited]
    total = len(originals) + len(edited)
    removed = {}
    for name, settings in (("near", {"near": {}}), ("full", "full")):
        manifest = dedup(directory / name, shards, settings)
        removed[name] = set(range(total)) - set(kept_documents(directory / name, 2))
        assert manifest.stats["near_duplicates"] == len(removed["near"])
    assert removed["full"] >= removed["near"]
    method = NearDedup()
    sets = [set(own.tolist()) for own in (shingle(pa.array([text]), method.ngram)[0] for text in originals)]
    for number, name in enumerate(edits):
        first = len(originals) * (number + 1)
        found = sum(first + place in removed["full"] for place in range(len(originals)))
        grams = (
            set(shingle(pa.array([text]), method.ngram)[0].tolist())
            for text in edited[first - len(originals) :]
        )
        similar = np.array([len(a & b) / len(a | b) for a, b in zip(sets, grams, strict=False)])
        expected = np.where(similar < method.threshold, 0, meeting_probability(similar, *method.shape))
        sigma = np.sqrt((expected * (1 - expected)).sum())
        assert found >= expected.sum() - 4 * sigma - 0.5, (name, found, expected.sum(), similar.mean())


def test_full_removes_every_edited_copy_that_near_alone_removes(tmp_path):
    check(tmp_path, own_texts(), list(EDITS))


@pytest.mark.corpora
def test_edited_copies_of_real_articles_are_found_as_the_curve_says(corpora, tmp_path):
    articles = (corpora / "wikipedia" / "extracted-en" / "wiki_07").read_text("utf-8").split("</doc>")
    long = [text.partition(">")[2].strip() for text in articles if len(text) > 4000]
    novels = [
        path.read_text("utf-8-sig", "ignore")[20_000:40_000] for path in (corpora / "books" / "en").glob("*")
    ]
    check(tmp_path, [*long[:40], *sorted(novels)[:20]], list(EDITS))


NUM_EACH = 40
FORMS = (
    "Year and medals won" + 12 * "\n| {} | {} |",
    "{} is an asteroid of the main belt. It was found on day {} of {} and goes around the Sun every {} days. Its"
    " diameter is {} km, its rotation takes {} seconds and its absolute magnitude is {}.",
    "Temperatures between {} and {} degrees. Wind {} km per hour from {} degrees. Rain {} mm, pressure {} hPa. Sunrise"
    " {}:{}, sunset {}:{}.",
    "Notice is hereby given under the provisions of the Act that all persons who have claims against the estate of the"
    " late John N{} of S{}, who died on day {}, are asked to send particulars of such claims in writing to the"
    " undersigned, at {} High Street, S{}, on or before day {}, after which date the executors will distribute the"
    " assets of the deceased among the persons entitled to them, having regard only to the claims of which they shall"
    " then have had notice.",
)
"""Tables, stubs of articles, weather reports and legal notices."""


def test_documents_that_differ_in_numbers_and_names_are_kept_and_edited_copies_found(tmp_path):
    draw = np.random.Generator(np.random.Philox(4))
    own = [form.format(*draw.integers(10, 2000, form.count("{}"))) for form in FORMS for _ in range(NUM_EACH)]
    words = ["".join(draw.choice([*"abcdefghijklm"], 6)) for _ in range(3000)]
    articles = [" ".join(draw.choice(words, 400)) for _ in range(NUM_EACH)]
    copies = [text.replace(text.split(" ")[200], "edited", 1) for text in articles]
    manifest = dedup(tmp_path / "out", [own + articles, copies], "full")
    assert kept_documents(tmp_path / "out", 2) == list(range(len(own + articles)))
    assert manifest.stats["near_duplicates"] == len(copies)


def test_digits_are_folded_on_request_only(tmp_path):
    tables = [f"Year and medals won\n| {year} | {year // 40} |" for year in (1890, 1990)]
    for fold in (False, True):
        near = DedupConfig.model_validate({"documents": False, "near": {"fold_digits": fold}})
        dedup(tmp_path / "out", [tables], near.model_dump())
        assert kept_documents(tmp_path / "out", 1) == ([0] if fold else [0, 1])
