"""Near-duplicates: n-grams, signatures and components against Python, theory and scipy; copies that are found."""

import math
import re
import unicodedata
from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError

from data_prep.dedup import records
from data_prep.dedup.config import DedupConfig, NearDedup, choose_bands, meeting_probability
from data_prep.dedup.graph import EDGES, ROUND, both_ways, distinct, list_leaves
from data_prep.dedup.near import band_keys, sign
from data_prep.dedup.records import RecordWriter, document_ranges, number_documents, read_range
from data_prep.dedup.texts import hash_words, shingle
from data_prep.layout import RECORD_FILES
from data_prep.ragged import Ragged
from data_prep.text.words import split_words
from tests.data_prep.dedup.corpus import dedup, firsts_of_components, kept_documents
from tests.pipeline.real_text import docstrings

WORDS = "the The café cafe\u0301 CAFE x1 x2 don't don t ab cab abc 日本 本 naïve, -- Ωmega \u0301"
TEXTS = st.lists(st.sampled_from(WORDS.split(" ")), max_size=12).map(" ".join)


def words_of(text):
    """Words in plain Python: folded, cut where something is neither letter nor digit, and around ideographs."""
    letters = [part for part in unicodedata.normalize("NFD", text) if unicodedata.category(part) != "Mn"]
    return re.findall(r"[\u4e00-\u9fff]|[^\W\u4e00-\u9fff_]+", "".join(letters).lower())


def ngrams_of(text, ngram):
    """Runs of so many words, or all words where they are fewer."""
    words = words_of(text)
    runs = [tuple(words[start : start + ngram]) for start in range(max(1, len(words) - ngram + 1))]
    return runs if words else []


@given(st.lists(TEXTS, min_size=1, max_size=5), st.integers(1, 6))
def test_ngrams_are_equal_when_their_words_are(texts, ngram):
    found = shingle(pa.array(texts, type=pa.string()), ngram)
    assert len(found) == len(texts)
    hash_of = {}
    for row, text in enumerate(texts):
        grams = ngrams_of(text, ngram)
        assert len(found[row]) == len(grams)
        for gram, value in zip(grams, found[row].tolist(), strict=True):
            assert hash_of.setdefault(gram, value) == value
    assert len(set(hash_of.values())) == len(hash_of)


def test_real_words_do_not_collide():
    # Without superscripts, which the hash takes for figures.
    text = unicodedata.normalize("NFKC", "\n".join(document.text for document in docstrings()))
    words = words_of(text)
    hashes = hash_words(split_words([text]))[0]
    assert len(hashes) == len(words) > 20_000
    assert len(np.unique(hashes)) == len(set(words))
    assert len(np.unique(shingle(pa.array([text]), 3)[0])) == len(set(ngrams_of(text, 3)))


NGRAM, NUM_PERMUTATIONS = 5, 128
NUM_PAIRS, NUM_WORDS = 400, 160
LETTERS = str.maketrans("0123456789", "ghijklmnop")
"""Digits as letters: folded digits would be all alike."""
GOLDEN = [[2150135554, 154349435, 471372049, 529430064], [1954477199, 4081489542, 3405608619, 911664300]]


def pairs_of_texts(generator, num_changes):
    """Texts of random words, and each again with some of its words replaced, at random places."""
    words = generator.integers(0, 1 << 30, size=(NUM_PAIRS, NUM_WORDS))
    changed = words.copy()
    for row in changed:
        places = generator.choice(NUM_WORDS, num_changes, replace=False)
        row[places] = generator.integers(1 << 30, 1 << 31, size=num_changes)
    return [
        [" ".join(f"w{word:x}".translate(LETTERS) for word in row) for row in rows]
        for rows in (words, changed)
    ]


def jaccard(first, second):
    """Similarity of the two texts' sets of n-grams, without any hash."""
    one, other = (
        {tuple(words[start : start + NGRAM]) for start in range(len(words) - NGRAM + 1)}
        for words in (first.split(), second.split())
    )
    return len(one & other) / len(one | other)


@pytest.fixture(scope="module")
def planted():
    """By number of changed words: ([pairs] true similarity, [pairs, permutations] signatures of both texts)."""
    generator = np.random.Generator(np.random.Philox(11))
    found = []
    for num_changes in (1, 2, 4, 7, 12, 25):
        texts = pairs_of_texts(generator, num_changes)
        similarities = np.array([jaccard(*pair) for pair in zip(*texts, strict=True)])
        signatures = [sign(shingle(pa.array(side), NGRAM), NUM_PERMUTATIONS, 1) for side in texts]
        found.append((similarities, signatures))
    return found


@pytest.mark.parametrize("shape", [choose_bands(0.8, 0.95, 128), (14, 8), (20, 5), (1, 16)])
def test_documents_meet_with_the_probability_of_the_s_curve(planted, shape):
    for similarities, signatures in planted:
        first, second = (band_keys(each, *shape) for each in signatures)
        num_met = int((first == second).any(axis=1).sum())
        probability = meeting_probability(similarities, *shape)
        sigma = np.sqrt((probability * (1 - probability)).sum())
        assert abs(num_met - probability.sum()) <= 4 * sigma + 0.5
    means = [similarities.mean() for similarities, _ in planted]
    assert min(means) < 0.3 < 0.9 < max(means)


def test_unrelated_documents_and_equal_values_in_different_bands_do_not_meet(planted):
    unrelated = band_keys(np.concatenate([signatures[0] for _, signatures in planted]), 14, 8)
    assert len(np.unique(unrelated)) == unrelated.size
    first, second = band_keys(np.full((2, 12), 7, dtype=np.uint32), 3, 4)
    assert np.array_equal(first, second)
    assert len(np.unique(first)) == 3


def test_signatures_are_what_they_were():
    """Another version of the library would find other near-duplicates in data that is prepared already."""
    shingles = Ragged.of([np.arange(5, dtype=np.uint64) << np.uint64(40), np.array([9], dtype=np.uint64)])
    assert sign(shingles, 4, 1).tolist() == GOLDEN
    assert sign(shingles, 4, 2).tolist() != GOLDEN


@pytest.mark.parametrize("num_permutations", [40, 128, 256])
@pytest.mark.parametrize("recall", [0.5, 0.95])
@pytest.mark.parametrize("threshold", [0.5, 0.7, 0.8, 0.95])
def test_bands_find_what_is_asked_for_and_of_all_that_do_the_least_below(threshold, recall, num_permutations):
    shapes = [(b, r) for b in range(1, num_permutations + 1) for r in range(1, num_permutations // b + 1)]
    enough = [shape for shape in shapes if meeting_probability(threshold, *shape) >= recall]
    chosen = choose_bands(threshold, recall, num_permutations)
    assert chosen in enough
    below = np.linspace(0.0, threshold, 2001)
    false_positives = {
        (bands, rows): np.trapezoid(1 - (1 - below**rows) ** bands, below) for bands, rows in enough
    }
    assert false_positives[chosen] <= min(false_positives.values()) + 1e-4


def test_verification_is_described_by_what_it_finds():
    loose, verified = NearDedup(verify=False).describe(), NearDedup().describe()
    assert (loose["bands"], loose["rows"], loose["verified"]) == (21, 9, False)
    assert loose["found"]["0.6"] < 0.2 < 0.95 <= loose["found"]["0.8"] == verified["found"]["0.8"]
    assert (verified["found"]["0.75"], verified["false_positives"]) == (0.0, 0.0)
    assert 0.3 < loose["false_positives"] < 0.5


@pytest.mark.parametrize(
    ("short", "whole"),
    [
        ("exact", {}),
        ("none", {"documents": False}),
        ("full", {"near": {}, "paragraphs": {"scope": "corpus"}}),
        ({"paragraphs": "within"}, {"paragraphs": {"scope": "within"}}),
        ({"paragraphs": "none"}, {"paragraphs": None}),
    ],
)
def test_short_names_stand_for_settings(short, whole):
    assert DedupConfig.model_validate(short) == DedupConfig.model_validate(whole)


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("exakt", "none, exact, full"),
        ({"near": {"bands": 4}}, "together"),
        ({"near": {"bands": 30, "rows": 10}}, "num_permutations = 256"),
        ({"near": {"threshold": 0.3, "recall": 0.99, "num_permutations": 8}}, "13 can"),
        ({"paragraphs": "everywhere"}, "within"),
    ],
)
def test_wrong_settings_are_explained(value, told):
    with pytest.raises(ValidationError, match=told):
        DedupConfig.model_validate(value)


ROWS = 7
"""Documents in every shard."""


def numbers(nodes):
    """Numbers of documents from positions in the corpus."""
    nodes = np.asarray(nodes, dtype=np.int64)
    return number_documents(0, nodes % ROWS) + (nodes // ROWS).astype(np.uint64) * np.uint64(1 << 32)


def leaves(directory, edges, num_nodes):
    """(positions of the nodes that are not the first of their component, rounds until nothing changed)."""
    ranges = document_ranges([ROWS] * -(-num_nodes // ROWS))
    files = RECORD_FILES.files(len(ranges))
    graph = directory / "edges"
    graph.mkdir()
    left, right = np.array(edges, dtype=np.int64).reshape(-1, 2).T
    with RecordWriter(graph / "00000-of-00001.arrow", EDGES) as writer:
        writer.write(both_ways(distinct(numbers(left), numbers(right))))
    number, num_changed = 0, 1
    while num_changed:
        num_changed = 0
        for name, operation in ROUND:
            target = directory / f"{number}-{name}"
            target.mkdir()
            for file, bounds in zip(files, ranges, strict=True):
                num_changed += operation(graph, *bounds, target / file).stats["changed"]
            graph = target
        number += 1
    (directory / "leaves").mkdir()
    for file, bounds in zip(files, ranges, strict=True):
        list_leaves(graph, *bounds, directory / "leaves" / file)
    found = [part["document"] for part in read_range(directory / "leaves", 0, (1 << 64) - 1)]
    documents = np.concatenate([np.empty(0, dtype=np.uint64), *found])
    rows, shards = documents & np.uint64(0xFFFFFFFF), documents >> np.uint64(32)
    return (shards * np.uint64(ROWS) + rows).astype(np.int64).tolist(), number


NODES = st.integers(0, 39)


@given(
    st.lists(st.tuples(NODES, NODES).filter(lambda pair: pair[0] != pair[1]), max_size=40),
    st.integers(1, 50),
    st.integers(1, 20),
)
@example([(20, node) for node in range(40) if node != 20], 50, 3)
def test_components_are_those_of_scipy(tmp_path_factory, edges, partition, block):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "PARTITION_RECORDS", partition)
        patch.setattr(records, "BLOCK_RECORDS", block)
        found, _ = leaves(tmp_path_factory.mktemp("graph"), edges, 40)
    linked = np.zeros((40, 40), dtype=bool)
    for edge in edges:
        linked[edge] = True
    assert sorted([*found, *firsts_of_components(linked)]) == list(range(40))


def test_a_long_path_in_any_order_takes_logarithmically_many_rounds(tmp_path):
    num_nodes = 2000
    order = np.random.Generator(np.random.Philox(3)).permutation(num_nodes)
    found, rounds = leaves(tmp_path, np.stack([order[:-1], order[1:]], axis=1), num_nodes)
    assert found == list(range(1, num_nodes))
    assert rounds <= math.log2(num_nodes) + 2


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
