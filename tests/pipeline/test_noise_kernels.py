"""The compiled draws are the draws of `Noise`."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pipeline.samples.noise import Noise, fold, integer, uniform

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
