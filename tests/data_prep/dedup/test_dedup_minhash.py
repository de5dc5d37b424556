"""MinHash finds what the theory says: signatures estimate Jaccard similarity, bands follow the S-curve."""

import numpy as np
import pyarrow as pa
import pytest
from pydantic import ValidationError

from data_prep.dedup.config import DedupConfig, NearDedup, choose_bands, meeting_probability
from data_prep.dedup.near import band_keys, sign
from data_prep.dedup.texts import shingle
from data_prep.ragged import Ragged

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


def test_agreement_of_signatures_estimates_jaccard_similarity(planted):
    errors, variances = [], []
    for similarities, (first, second) in planted:
        agreement = (first == second).mean(axis=1)
        variance = similarities * (1 - similarities) / NUM_PERMUTATIONS
        mean_error = (agreement - similarities).mean()
        assert abs(mean_error) < 4 * np.sqrt(variance.sum()) / NUM_PAIRS
        errors.append(((agreement - similarities) ** 2).mean())
        variances.append(variance.mean())
    # No larger than those of so many coin tosses; the library's permutations do better, being balanced.
    assert np.sum(errors) < 1.1 * np.sum(variances)


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


def test_the_default_is_described_by_what_it_finds():
    told = NearDedup(verify=False).describe()
    assert (told["bands"], told["rows"], told["verified"]) == (21, 9, False)
    assert told["found"]["0.8"] >= 0.95
    assert told["found"]["0.6"] < 0.2
    assert 0.3 < told["false_positives"] < 0.5
    verified = NearDedup().describe()
    assert (verified["found"]["0.75"], verified["found"]["0.8"]) == (0.0, told["found"]["0.8"])
    assert verified["false_positives"] == 0.0


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
