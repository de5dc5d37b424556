"""The order of samples is a pure function, and mixtures keep their weights."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.samples.mixture import Mixture
from pipeline.samples.noise import Noise
from pipeline.samples.shuffle import StoreOrder, sorted_by_draw


def test_every_epoch_holds_each_row_once_in_a_new_order():
    order = StoreOrder("fingerprint", seed=1)
    first, second = order.rows(0, 500), order.rows(1, 500)
    assert sorted(first) == sorted(second) == list(range(500))
    assert (first != second).mean() > 0.9


def test_order_depends_on_fingerprint_and_seed_and_on_nothing_else():
    documents = np.arange(0, 300, 3)
    base = StoreOrder("a", 1).documents(4, documents)
    assert (base == StoreOrder("a", 1).documents(4, documents)).all()
    assert (base != StoreOrder("b", 1).documents(4, documents)).any()
    assert (base != StoreOrder("a", 2).documents(4, documents)).any()


def test_leaving_documents_out_does_not_reorder_the_others():
    order = StoreOrder("a", 1)
    everything = order.documents(0, np.arange(200))
    half = order.documents(0, np.arange(0, 200, 2))
    assert [d for d in everything if d % 2 == 0] == half.tolist()


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


def test_many_small_parts_keep_their_weights():
    """A hundred languages with a hundredth of the tokens, beside one with the rest; more parts than any period."""
    parts, _ = Mixture([99.0, *[0.01] * 100], seed=3).locate(np.arange(100_000))
    assert np.bincount(parts).tolist() == pytest.approx([99_000, *[10] * 100], abs=4)
    parts, _ = Mixture([1.0] * 1100, seed=3).locate(np.arange(11_000))
    assert np.bincount(parts).tolist() == pytest.approx([10] * 1100, abs=4)


def test_a_single_store_is_taken_as_it_is():
    stores, numbers = Mixture([2.0], 9).locate(np.array([0, 1, 5000]))
    assert (stores.tolist(), numbers.tolist()) == ([0, 0, 0], [0, 1, 5000])


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 100, 127, 128, 129, 5_000, 131_071, 131_072, 300_000])
def test_numbers_come_in_the_order_of_a_stable_sort_of_their_draws(count: int, dtype: type[np.signedinteger]):
    for seed in range(3):
        noise, numbers = Noise.of("test", seed), np.arange(count, dtype=dtype) * dtype(seed + 1)
        expected = numbers[np.argsort(noise.at(numbers).bits(), kind="stable")]
        before = numbers.copy()
        found = sorted_by_draw(np.uint64(noise.state), numbers)
        assert np.array_equal(numbers, before), "the input stays as it is"
        assert found.dtype == dtype
        assert np.array_equal(found, expected)
        memory = np.empty((2, count), dtype)
        sorted_by_draw(np.uint64(noise.state), numbers, memory)
        assert np.array_equal(memory[1], expected)


def test_equal_draws_stay_as_they_stand():
    numbers = np.array([7, 3, 7, 7, 3])
    noise = Noise.of("test")
    expected = numbers[np.argsort(noise.at(numbers).bits(), kind="stable")]
    assert np.array_equal(sorted_by_draw(np.uint64(noise.state), numbers), expected)


def test_the_order_of_documents_and_rows_is_the_same_on_every_machine():
    order = StoreOrder("fingerprint", seed=1)
    assert order.documents(3, np.arange(5, 25, 2)).tolist() == [19, 5, 13, 7, 23, 15, 11, 17, 9, 21]
    assert order.rows(3, 10).tolist() == [4, 3, 5, 6, 0, 8, 1, 7, 2, 9]
