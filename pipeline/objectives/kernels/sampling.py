"""Draws over sets inside compiled loops: subsets, permutations, compositions, Poisson lengths.

Every function takes a `state` of `noise_kernels`, and folds the number of each draw into it.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from cluster.compiled_loop import compiled_loop
from pipeline.samples.noise import fold, integer, uniform


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
