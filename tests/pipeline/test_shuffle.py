"""The order of an epoch is that of a stable sort of its draws, however it is made."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.samples.noise import Noise
from pipeline.samples.shuffle import StoreOrder, sorted_by_draw


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 100, 127, 128, 129, 5_000, 131_071, 131_072, 300_000])
def test_numbers_come_in_the_order_of_a_stable_sort_of_their_draws(count: int, dtype: type[np.signedinteger]):
    for seed in range(3):
        noise, numbers = Noise.of("test", seed), np.arange(count, dtype=dtype) * dtype(seed + 1)
        expected = numbers[np.argsort(noise.at(numbers).bits(), kind="stable")]
        found = sorted_by_draw(np.uint64(noise.state), numbers)
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


def test_what_is_sorted_is_left_as_it_was():
    numbers = np.arange(50)
    sorted_by_draw(np.uint64(1), numbers)
    assert np.array_equal(numbers, np.arange(50))


def test_the_order_of_documents_and_rows_is_the_same_on_every_machine():
    order = StoreOrder("fingerprint", seed=1)
    assert order.documents(3, np.arange(5, 25, 2)).tolist() == [19, 5, 13, 7, 23, 15, 11, 17, 9, 21]
    assert order.rows(3, 10).tolist() == [4, 3, 5, 6, 0, 8, 1, 7, 2, 9]
