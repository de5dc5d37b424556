"""Counter-based randomness: every draw is a hash of the place that uses it, so there is no generator state.

The mixing function is the finaliser of SplitMix64 (Steele, Lea and Flood 2014, "Fast splittable pseudorandom
number generators"), with the murmur-style constants of Stafford's variant 13. Keys are folded in one by one.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from cluster.compiled_loop import compiled_loop

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


_S30, _S27, _S31, _S11, _S32 = (np.uint64(shift) for shift in (30, 27, 31, 11, 32))


@compiled_loop
def mix(value: Any) -> Any:
    """SplitMix64's finaliser of a uint64; call `mix.py_func` for arrays; the argument is not modified."""
    value = value ^ (value >> _S30)
    value *= _MIX_1
    value ^= value >> _S27
    value *= _MIX_2
    return value ^ (value >> _S31)


@dataclass(frozen=True, slots=True)
class Noise:
    """A point in the space of draws. Adding keys gives new, independent points; drawing changes nothing."""

    state: np.ndarray
    """uint64, of any shape."""

    @classmethod
    def of(cls, *keys: Any) -> Noise:
        """Noise for scalar keys: non-negative integers, or strings naming a purpose (`"order"`)."""
        return cls(np.zeros((), dtype=np.uint64)).at(*keys)

    def at(self, *keys: Any) -> Noise:
        """Noise further keyed by each of `keys`: integers, strings, or integer arrays that broadcast."""
        state = self.state
        for key in keys:
            if isinstance(key, str):
                digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
                number = np.frombuffer(digest, dtype="<u8")[0]
            else:
                number = np.asarray(key).astype(np.uint64)
            with np.errstate(over="ignore"):
                state = mix.py_func((state ^ mix.py_func(number + _GAMMA)) + _GAMMA)
        return Noise(state)

    def bits(self) -> np.ndarray:
        """uint64 draws, uniform over all values, in the shape of the keys."""
        return self.state

    def uniform(self) -> np.ndarray:
        """float64 draws in [0, 1), in the shape of the keys."""
        return (self.state >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def integers(self, high: int) -> np.ndarray:
        """int64 draws in [0, high). The bias, below high / 2**32, is too small for any run to show."""
        return ((self.state >> np.uint64(32)) * np.uint64(high) >> np.uint64(32)).astype(np.int64)

    def permutation(self, size: int) -> np.ndarray:
        """int64 [size]: a permutation of range(size), by sorting one draw per element."""
        return np.argsort(self.at(np.arange(size, dtype=np.uint64)).bits(), kind="stable")

    def seed(self) -> int:
        """An integer in [0, 2**63), to seed a generator. Only for scalar noise."""
        return int(self.state >> np.uint64(1))


@compiled_loop
def fold(state: Any, key: Any) -> Any:
    """`Noise(state).at(key)`; its value is also the draw of 64 bits."""
    return mix((state ^ mix(key + _GAMMA)) + _GAMMA)


@compiled_loop
def uniform(state: Any) -> Any:
    """float64 in [0, 1), as `Noise.uniform`."""
    return np.float64(state >> _S11) * 2.0**-53


@compiled_loop
def integer(state: Any, high: Any) -> Any:
    """int64 in [0, high), as `Noise.integers`; `high` below 2**32."""
    return np.int64(((state >> _S32) * np.uint64(high)) >> _S32)


# Draws over sets: every function takes a `state`, and folds the index of each draw into it.


@compiled_loop
def choose(count: int, among: int, state: np.uint64) -> np.ndarray:
    """[among] bool with exactly `count` True, every such subset equally likely.

    Floyd's algorithm (Bentley and Floyd 1987, "A sample of brilliance"), which takes one draw per chosen item.
    """
    chosen = np.zeros(among, dtype=np.bool_)
    for item in range(among - count, among):
        drawn = integer(fold(state, np.uint64(item)), item + 1)
        chosen[item if chosen[drawn] else drawn] = True
    return chosen


@compiled_loop
def shuffle(items: np.ndarray, state: np.uint64) -> None:
    """Put `items` into any order, all equally likely, in place (Fisher and Yates)."""
    for last in range(len(items) - 1, 0, -1):
        other = integer(fold(state, np.uint64(last)), last + 1)
        items[last], items[other] = items[other], items[last]


@compiled_loop
def partition(total: int, parts: int, state: np.uint64) -> np.ndarray:
    """[parts] int64 lengths of at least 1 that sum to `total`, every such list equally likely; parts <= total."""
    ends = choose(parts - 1, total - 1, state)
    lengths = np.empty(parts, dtype=np.int64)
    part, start = 0, 0
    for item in range(total - 1):
        if ends[item]:
            lengths[part] = item + 1 - start
            part, start = part + 1, item + 1
    lengths[part] = total - start
    return lengths


@compiled_loop
def poisson(cumulative: np.ndarray, state: np.uint64) -> int:
    """A draw from the distribution that `poisson_table` holds."""
    draw, value = uniform(state), 0
    while draw >= cumulative[value]:
        value += 1
    return value


@lru_cache(maxsize=8)
def poisson_table(mean: float) -> np.ndarray:
    """Cumulative probabilities of 0, 1, 2, ... under Poisson(mean): float64, the last is 1.

    The tail beyond ten standard deviations, where less than 1e-9 lies, falls to the last value.
    """
    values = range(math.ceil(mean + 10 * math.sqrt(mean) + 10))
    log_mean = math.log(mean)
    probabilities = [math.exp(value * log_mean - mean - math.lgamma(value + 1)) for value in values]
    cumulative = np.cumsum(probabilities)
    cumulative[-1] = 1.0
    return cumulative
