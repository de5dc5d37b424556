"""Near-duplicates: n-grams, signatures and components against Python, theory and scipy; copies that are found."""

import math
from string import ascii_lowercase

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError

from data_prep.dedup import records
from data_prep.dedup.config import DedupConfig, choose_bands, meeting_probability
from data_prep.dedup.graph import EDGES, ROUND, both_ways, distinct, list_leaves
from data_prep.dedup.near import band_keys, sign
from data_prep.dedup.records import RecordWriter, document_ranges, read_range
from data_prep.dedup.texts import hash_words, shingle
from data_prep.layout import RECORD_FILES
from data_prep.ragged import Ragged
from data_prep.text.words import split_words
from tests.data_prep.decontaminate.oracle import ngrams_of, words_of
from tests.data_prep.dedup.corpus import dedup, firsts_of_components, kept_documents
from tests.pipeline.real_text import docstrings

WORDS = "the The café cafe\u0301 CAFE x1 x2 don't don t ab cab abc 日本 本 naïve, -- Ωmega \u0301"
TEXTS = st.lists(st.sampled_from(WORDS.split(" ")), max_size=12).map(" ".join)


@given(st.lists(TEXTS, min_size=1, max_size=5), st.integers(1, 6))
def test_ngrams_are_equal_when_their_words_are(texts, ngram):
    found = shingle(pa.array(texts, type=pa.string()), ngram)
    assert len(found) == len(texts)
    hash_of = {}
    for row, text in enumerate(texts):
        grams = list(ngrams_of(text, ngram, 1))
        assert len(found[row]) == len(grams)
        for gram, value in zip(grams, found[row].tolist(), strict=True):
            assert hash_of.setdefault(gram, value) == value
    assert len(set(hash_of.values())) == len(hash_of)


def test_real_words_do_not_collide():
    text = "\n".join(document.text for document in docstrings())[:500_000]
    words = [word for word, _, _ in words_of(text)]
    hashes = hash_words(split_words([text]))[0]
    assert len(hashes) == len(words) > 20_000
    assert len(np.unique(hashes)) == len(set(words))
    assert len(np.unique(shingle(pa.array([text]), 3)[0])) == len(set(ngrams_of(text, 3, 1)))


GOLDEN = [[2150135554, 154349435, 471372049, 529430064], [1954477199, 4081489542, 3405608619, 911664300]]


@pytest.mark.parametrize("shape", [choose_bands(0.8, 0.95, 128), (14, 8), (20, 5), (1, 16)])
def test_documents_meet_with_the_probability_of_the_s_curve_and_unrelated_ones_do_not(shape):
    generator = np.random.Generator(np.random.Philox(11))
    for num_shared in (30, 80, 110, 130, 145, 152):
        ngrams = generator.integers(0, 1 << 63, (400, 312 - num_shared), dtype=np.uint64)
        similarity = num_shared / (312 - num_shared)
        first, second = (
            band_keys(sign(Ragged.of([*side]), 128, 1), *shape)
            for side in (ngrams[:, :156], ngrams[:, -156:])
        )
        num_met = int((first == second).any(axis=1).sum())
        probability = float(meeting_probability(similarity, *shape))
        sigma = np.sqrt(400 * probability * (1 - probability))
        assert abs(num_met - 400 * probability) <= 4 * sigma + 0.5
        assert len(np.unique(first)) == first.size


def test_equal_values_in_different_bands_do_not_meet():
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


@pytest.mark.parametrize(
    ("short", "whole"),
    [
        ("none", {"documents": False}),
        ("full", {"near": {}, "paragraphs": {"scope": "corpus"}}),
        ({"paragraphs": "within"}, {"paragraphs": {"scope": "within"}}),
        ({"paragraphs": "none"}, {"paragraphs": None}),
    ],
)
def test_short_names_stand_for_settings(short, whole):
    assert DedupConfig.model_validate(short) == DedupConfig.model_validate(whole)


@pytest.mark.parametrize(
    "value",
    [
        "exakt",
        {"near": {"bands": 4}},
        {"near": {"bands": 30, "rows": 10}},
        {"near": {"threshold": 0.3, "recall": 0.99, "num_permutations": 8}},
        {"paragraphs": "everywhere"},
    ],
)
def test_settings_that_do_not_fit_are_refused(value):
    with pytest.raises(ValidationError):
        DedupConfig.model_validate(value)


def leaves(directory, edges, num_nodes):
    """(nodes that are not the first of their component, rounds until nothing changed)."""
    ranges = document_ranges([num_nodes])
    files = RECORD_FILES.files(len(ranges))
    graph = directory / "edges"
    graph.mkdir()
    left, right = np.array(edges, dtype=np.uint64).reshape(-1, 2).T
    with RecordWriter(graph / "00000-of-00001.arrow", EDGES) as writer:
        writer.write(both_ways(distinct(left, right)))
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
    found = read_range(directory / "leaves", 0, num_nodes)
    return [node for part in found for node in part["document"].tolist()], number


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


def random_words(generator, count):
    return ["".join(generator.choice([*"abcdefghijklm"], 6)) for _ in range(count)]


def test_copies_with_few_edits_are_found_whatever_their_paragraphs_and_those_with_many_are_not(tmp_path):
    generator = np.random.Generator(np.random.Philox(9))
    words = random_words(generator, 4000)
    originals = [
        "\n".join(" ".join(generator.choice(words, generator.integers(30, 90))) for _ in range(12))
        for _ in range(60)
    ]

    def edited(text, share):
        pieces = text.split(" ")
        for place in generator.choice(len(pieces), round(share * len(pieces)), replace=False).tolist():
            # A word may stand at the end of a paragraph.
            pieces[place] = "zebra" + pieces[place].lstrip(ascii_lowercase)
        return " ".join(pieces)

    few = [edited(text, share) for share in (0.005, 0.01) for text in originals]
    shards = [originals, few, [edited(text, 0.05) for text in originals]]
    for name, settings in (("near", {"near": {}}), ("full", "full")):
        manifest = dedup(tmp_path / name, shards, settings)
        assert kept_documents(tmp_path / name, 3) == [*range(60), *range(180, 240)]
        assert manifest.stats["near_duplicates"] == len(few)


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


def test_documents_that_differ_in_numbers_and_names_are_kept(tmp_path):
    draw = np.random.Generator(np.random.Philox(4))
    texts = [form.format(*draw.integers(10, 2000, form.count("{}"))) for form in FORMS for _ in range(40)]
    manifest = dedup(tmp_path / "out", [texts], "full")
    assert manifest.stats["documents_kept"] == len(texts)
