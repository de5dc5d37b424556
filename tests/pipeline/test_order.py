"""The order of samples is a pure function, and mixtures keep their weights."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.samples.epochs.shuffle import StoreOrder
from pipeline.samples.mixture import SCHEDULE_PERIOD, Mixture


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


@settings(deadline=None)
@given(st.lists(st.floats(0.01, 10), min_size=1, max_size=6), st.integers(0, 100))
def test_each_store_gives_its_samples_in_sequence_without_gap_or_repeat(weights: list[float], seed: int):
    mixture = Mixture(weights, seed)
    given: dict[int, list[int]] = {}
    stores, numbers = mixture.locate(np.arange(3 * SCHEDULE_PERIOD))
    for store, own in zip(stores.tolist(), numbers.tolist(), strict=True):
        given.setdefault(store, []).append(own)
    for numbers in given.values():
        assert numbers == list(range(len(numbers)))


def test_a_mixture_keeps_its_weights():
    mixture = Mixture([0.7, 0.2, 0.1], seed=3)
    stores, _ = mixture.locate(np.arange(10 * SCHEDULE_PERIOD))
    shares = np.bincount(stores) / len(stores)
    assert shares == pytest.approx([0.7, 0.2, 0.1], abs=1 / SCHEDULE_PERIOD)


def test_a_single_store_is_taken_as_it_is():
    stores, numbers = Mixture([2.0], 9).locate(np.array([0, 1, 5000]))
    assert (stores.tolist(), numbers.tolist()) == ([0, 0, 0], [0, 1, 5000])
