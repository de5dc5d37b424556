"""The demo's tasks: rows made from held-out documents."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from cluster.artefacts.errors import ConfigError
from data_prep.document import Document
from data_prep.token_store import TokenStore
from pipeline.road import demo
from pipeline.road.demo import CODE, exchange_halves, split, split_sentences, tag_words, write_rows
from pipeline.samples.noise import Noise

NOUNS = ("matrix", "actor", "model", "tensor", "array", "worker", "score", "layer")
Rows = dict[str, list[dict[str, Any]]]


def sentence(number: int) -> str:
    """A sentence of eleven words that no other number has."""
    first, second = NOUNS[number % 8], NOUNS[number // 8 % 8]
    digits = " ".join("abcdefghij"[int(digit)] * 3 for digit in f"{number:03d}")
    return f"Return the `{first}` of numpy whose {second} is {digits} here."


class Store:
    """What the tasks use of a token store: 300 documents of three sentences, the even ones held out."""

    place = "tokens"
    sizes: Mapping[str, tuple[int, int]] = {}
    """Rows of tasks that have not 120 to train on and 60 to evaluate on."""

    def __init__(self) -> None:
        self.all_documents = [
            Document(
                doc_id=f"docs:{n}",
                source="docs",
                uri="",
                title="",
                lang="en",
                text="\n".join(sentence(3 * n + k) for k in range(3)),
                meta={},
            )
            for n in range(300)
        ]

    def change(self, how) -> None:
        self.all_documents = [dataclasses.replace(d, text=how(d.text)) for d in self.all_documents]

    def documents(self, numbers: np.ndarray) -> list[Document]:
        return [self.all_documents[number] for number in numbers]

    def held_out(self, fraction: float) -> np.ndarray:
        return np.arange(300) % 2 == 0


def write(store: Store, out: Path) -> dict[str, Rows]:
    """By task and side, the rows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "SIZES", {**dict.fromkeys(demo.SIZES, (120, 60)), **store.sizes})
        write_rows(cast(TokenStore, store), 0.5, out)
    return {
        task: {
            side: [json.loads(line) for line in (out / task / f"{side}.jsonl").read_bytes().splitlines()]
            for side in ("train", "evaluation")
        }
        for task in demo.TASKS
    }


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Rows]:
    return write(Store(), tmp_path_factory.mktemp("rows"))


@pytest.mark.parametrize("task", demo.TASKS)
def test_no_document_is_on_both_sides_and_all_are_held_out(written: dict[str, Rows], task: str):
    rows = written[task]
    assert (len(rows["train"]), len(rows["evaluation"])) == (120, 60)
    train, evaluation = ({row["id"].partition("#")[0] for row in side} for side in rows.values())
    assert not train & evaluation
    assert all(int(doc_id.removeprefix("docs:")) % 2 == 0 for doc_id in train | evaluation)


def test_rows_are_the_same_every_time(written: dict[str, Rows], tmp_path: Path):
    assert write(Store(), tmp_path) == written


def test_text_found_on_both_sides_stays_in_the_evaluation_only():
    shared = "Arrays are converted before they are used by the estimator."
    store = Store()
    store.change(lambda text: f"{text}\n{shared}")
    sides = split(store.all_documents, 0.5)
    assert [sum(s.text == shared for s in side) for side in sides] == [0, 1]


def test_too_little_text_is_an_error_that_says_what_was_found(tmp_path: Path):
    store = Store()
    store.sizes = {"code": (5000, 60)}
    with pytest.raises(ConfigError, match=r"`code`.*\d+"):
        write(store, tmp_path)


def test_every_sentence_occurs_in_order_and_disordered_with_the_same_words_and_ends(written: dict[str, Rows]):
    rows = written["word_order"]["train"]
    for disordered, ordered in zip(rows[::2], rows[1::2], strict=True):
        assert (disordered["label"], ordered["label"]) == ("disordered", "in_order")
        moved, words = disordered["text"].split(), ordered["text"].split()
        assert moved != words
        assert sorted(moved) == sorted(words)
        assert (moved[0], moved[-1]) == (words[0], words[-1])
        assert (words[0].islower(), words[-1].isalpha()) == (True, True)


def test_halves_are_exchanged_in_the_middle_third():
    words = [f"w{number}" for number in range(12)]
    for draw in range(20):
        moved = exchange_halves(words, Noise.of(draw))
        assert moved is not None
        cut = 12 - moved.index("w1")
        assert moved == ["w0", *words[cut:-1], *words[1:cut], "w11"]
        assert 4 <= cut < 8


@pytest.mark.parametrize(
    ("words", "moved"),
    [
        ("a b, c, d, e f", None),
        ("a b c, d e f", "a c, d e b f"),
        ("no no no no no no", None),
    ],
)
def test_halves_are_not_cut_after_punctuation_and_must_differ(words: str, moved: str | None):
    found = exchange_halves(words.split(), Noise.of(1))
    assert (found and " ".join(found)) == moved


def test_code_is_tagged_and_its_marks_are_gone(written: dict[str, Rows]):
    for row in (*written["code"]["train"], *written["code"]["evaluation"]):
        assert not any("`" in word for word in row["tokens"])
        assert [word in NOUNS for word in row["tokens"][:3]] == [False, False, True]
        assert [number for number, tag in enumerate(row["tags"]) if tag == CODE] == [2]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("Call ``np.sum`` first.", ["np.sum"]),
        ("It is (`axis`), or :func:`~torch.sum`!", ["axis", "~torch.sum"]),
        ("All `Tensor`s of `nn.Module`_ are moved.", ["Tensor", "nn.Module"]),
        ("Nothing is marked here.", None),
        ("Code of `two words` is unclear.", None),
        ("Half of a `pair is unclear.", None),
        ("A ``pair` of unequal marks is unclear.", None),
    ],
)
def test_marks_of_docstrings_are_read(text: str, code: list[str] | None):
    tagged = tag_words(text)
    found = tagged and [word for word, tag in zip(*tagged, strict=True) if tag == CODE]
    assert found == code


def test_punctuation_around_words_does_not_tell_their_tags():
    tagged = tag_words("See (the `axis`), if any.")
    assert tagged
    assert tagged[0] == ["See", "the", "axis", "if", "any"]


def test_sentences_end_at_full_stops_and_paragraphs_but_not_at_line_ends_or_headings():
    text = "One line\ngoes on. Then 2.5 more! Is it?\n\nAnother paragraph"
    assert list(split_sentences(text)) == [
        "One line goes on.",
        "Then 2.5 more!",
        "Is it?",
        "Another paragraph",
    ]
    text = "It is fast.\n\nReturns\n-------\nout : array\n    The result.\nNotes\n  =====\nSee there."
    assert list(split_sentences(text)) == ["It is fast.", "out : array The result.", "See there."]


def test_code_and_fragments_are_no_sentences():
    junk = ">>> x = np.ones(3); y = x + 1; print(x, y)\n\nstarts in lower case and ends here.\n\nToo short."
    store = Store()
    store.change(lambda text: f"{junk}\n\n{text}")
    assert all(s.text.startswith("Return the") for s in split(store.all_documents, 0.5)[0])
