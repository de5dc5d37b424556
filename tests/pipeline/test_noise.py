"""Counter-based randomness."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from pipeline.samples.noise import Noise, fold, integer, uniform


def test_draws_are_a_function_of_the_keys_alone():
    first = Noise.of("mask", 3).at(np.arange(100, dtype=np.uint64)).bits()
    second = Noise.of("mask", 3).at(np.arange(100, dtype=np.uint64)).bits()
    assert (first == second).all()
    assert (Noise.of("mask", 4).at(np.arange(100, dtype=np.uint64)).bits() != first).all()


def test_known_draws_never_change():
    # A change here changes the order and the masks of every run there is.
    assert int(Noise.of("order", 1).bits()) == 3403834715880891901
    assert Noise.of("order", 1).at(np.arange(3, dtype=np.uint64)).integers(1000).tolist() == [956, 744, 314]


def test_draws_are_uniform():
    draws = Noise.of("uniform").at(np.arange(200_000, dtype=np.uint64)).uniform()
    assert stats.kstest(draws, "uniform").pvalue > 1e-3
    assert draws.min() >= 0
    assert draws.max() < 1


def test_neighbouring_keys_are_uncorrelated():
    grid = Noise.of("grid").at(
        np.arange(300, dtype=np.uint64)[:, None], np.arange(300, dtype=np.uint64)[None, :]
    )
    draws = grid.uniform()
    for other in (draws[1:, :], draws[:, 1:]):
        same = draws[: other.shape[0], : other.shape[1]]
        assert abs(np.corrcoef(same.ravel(), other.ravel())[0, 1]) < 0.02


@given(st.integers(0, 500), st.integers(0, 2**63 - 1))
def test_a_permutation_holds_every_index_once(size: int, seed: int):
    assert sorted(Noise.of(seed).permutation(size).tolist()) == list(range(size))


@given(st.integers(1, 2**31))
def test_integers_stay_below_their_bound(high: int):
    draws = Noise.of("bound").at(np.arange(64, dtype=np.uint64)).integers(high)
    assert draws.min() >= 0
    assert draws.max() < high


@pytest.mark.parametrize("size", [1, 2, 7])
def test_every_permutation_of_a_short_list_occurs(size: int):
    seen = {tuple(Noise.of("short", number).permutation(min(size, 3))) for number in range(200)}
    assert len(seen) == {1: 1, 2: 2, 7: 6}[size]


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
