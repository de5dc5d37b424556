"""Counter-based randomness; the order of samples is a pure function of it, and mixtures keep their weights."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from pipeline.samples.mixture import Mixture
from pipeline.samples.noise import Noise, fold, integer, uniform
from pipeline.samples.shuffle import StoreOrder, sorted_by_draw


def test_draws_are_uniform_and_those_of_neighbouring_keys_uncorrelated():
    draws = Noise.of("uniform").at(*np.ogrid[:450, :450]).uniform()
    assert stats.kstest(draws.ravel(), "uniform").pvalue > 1e-3
    assert draws.min() >= 0
    assert draws.max() < 1
    for one, other in ((draws[:-1], draws[1:]), (draws[:, :-1], draws[:, 1:])):
        assert abs(np.corrcoef(one.ravel(), other.ravel())[0, 1]) < 0.02


@given(st.integers(0, 500), st.integers(0, 2**63 - 1))
def test_a_permutation_holds_every_index_once(size: int, seed: int):
    assert sorted(Noise.of(seed).permutation(size).tolist()) == list(range(size))


WORDS = st.integers(0, 2**64 - 1)


@given(WORDS, st.lists(WORDS, min_size=1, max_size=4), st.integers(1, 2**32 - 1))
def test_compiled_draws_equal_those_of_noise(seed: int, keys: list[int], high: int):
    noise = Noise.of("test", seed)
    state = np.uint64(noise.state)
    for key in keys:
        noise = noise.at(key)
        state = np.uint64(fold(state, np.uint64(key)))
    assert state == noise.bits()
    assert uniform(state) == noise.uniform()
    assert integer(state, high) == noise.integers(high)


def of_every_size(counts: st.SearchStrategy[int]) -> st.SearchStrategy[list[float]]:
    """Weights of 1 to 3,000 parts, equal or of very different sizes, some of them 0."""

    def weights(count: int, spread: float, seed: int) -> list[float]:
        drawn = np.random.default_rng(seed).uniform(-spread, 0, count)
        return [*np.where(drawn < -20, 0.0, np.exp(drawn)).tolist()[:-1], 1.0]

    return st.builds(weights, counts, st.sampled_from([0.0, 1.0, 10.0, 30.0]), st.integers(0, 1000))


@given(of_every_size(st.integers(1, 3000)), st.integers(0, 100), st.integers(0, 2**40), st.integers(1, 3000))
def test_parts_give_their_own_samples_without_gap_and_by_weight_from_any_sample_on(
    weights: list[float], seed: int, first: int, count: int
):
    mixture = Mixture(weights, seed)
    samples = np.arange(first, first + count)
    parts, numbers = mixture.locate(samples)
    share = np.array(weights) / sum(weights)
    for part in np.unique(parts).tolist():
        own = numbers[parts == part]
        assert (np.diff(own) == 1).all()
        assert (mixture.samples_of(part, own) == samples[parts == part]).all()
        # Half a sample for each level of the tree, and the rounding of a share to 52 bits.
        assert np.abs(own - samples[parts == part] * share[part]).max() <= 1 + len(weights).bit_length() / 2
    assert share[np.unique(parts)].all()


def test_order_depends_on_fingerprint_seed_and_epoch_and_not_on_documents_left_out():
    everything, half = np.arange(300), np.arange(0, 300, 2)
    orders = [
        StoreOrder(fingerprint, seed).documents(epoch, everything)
        for fingerprint, seed, epoch in (("a", 1, 4), ("a", 1, 4), ("b", 1, 4), ("a", 2, 4), ("a", 1, 5))
    ]
    assert all(sorted(each) == list(range(300)) for each in orders)
    assert [(each != orders[0]).mean() > 0.9 for each in orders] == [False, False, True, True, True]
    assert [d for d in orders[0] if d % 2 == 0] == StoreOrder("a", 1).documents(4, half).tolist()
    first, second = (StoreOrder("a", 1).rows(epoch, 500) for epoch in (0, 1))
    assert sorted(first) == sorted(second) == list(range(500))
    assert (first != second).mean() > 0.9


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 100, 127, 128, 129, 5_000, 131_071, 131_072, 300_000])
def test_numbers_come_in_the_order_of_a_stable_sort_of_their_draws(count: int, dtype: type[np.signedinteger]):
    # Every number stands there twice, so that draws are equal.
    numbers = np.arange(count, dtype=dtype) // dtype(2)
    before, memory = numbers.copy(), np.empty((2, count), dtype)
    for seed in range(3):
        noise = Noise.of("test", seed)
        expected = numbers[np.argsort(noise.at(numbers).bits(), kind="stable")]
        found = sorted_by_draw(np.uint64(noise.state), numbers)
        sorted_by_draw(np.uint64(noise.state), numbers, memory)
        assert found.dtype == dtype
        for own, other in ((numbers, before), (found, expected), (memory[1], expected)):
            assert np.array_equal(own, other)
