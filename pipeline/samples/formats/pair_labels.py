"""Which pairs of an epoch are random: half of the pairs of any length, so that no length tells the label.

Some pairs can only be random, because their segments come from two documents. In their block, so many fewer of the
others become random; and where they would be more than half of a block, the surplus is left out.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from cluster.compiled_loop import compiled_loop
from pipeline.samples.noise.noise import Noise

BLOCK = 64
"""Pairs of about one length, of which half are random; even, so that this is half of all pairs too."""


class Candidates(NamedTuple):
    """Pairs in blocks of about one length."""

    numbers: np.ndarray
    """[pairs] int64: which pairs, ascending in length; BLOCK of them are a block, the last one may be shorter."""
    must_be_random: np.ndarray
    """[pairs] bool."""


def arrange(lengths: np.ndarray, must_be_random: np.ndarray, noise: Noise) -> Candidates:
    """Sort pairs into blocks of about one length, of which at most half must be random.

    Args:
        lengths: [pairs] int64 tokens of each pair.
        must_be_random: [pairs] bool.
        noise: decides among equal lengths.
    """
    order = np.lexsort((noise.at(np.arange(len(lengths))).bits(), lengths))
    kept = order[_keep(must_be_random[order])]
    return Candidates(kept, must_be_random[kept])


def draw_random(candidates: Candidates, noise: Noise) -> np.ndarray:
    """[pairs] bool: half of each block: all that must be random, and others chosen by `noise`."""
    count = len(candidates.numbers)
    blocks = np.arange(count) // BLOCK
    draws = noise.at(np.arange(count)).uniform()
    order = np.lexsort((np.where(candidates.must_be_random, -1.0, draws), blocks))
    found = np.empty(count, dtype=bool)
    found[order] = np.arange(count) % BLOCK < _half(count)[blocks]
    return found


@compiled_loop
def _keep(must_be_random: np.ndarray) -> np.ndarray:
    """[pairs] bool: False for pairs that must be random and would be in the second half of a block."""
    kept = np.ones(len(must_be_random), dtype=np.bool_)
    size = random = 0
    for i in range(len(must_be_random)):
        kept[i] = not must_be_random[i] or random < BLOCK // 2
        random += kept[i] and must_be_random[i]
        size += kept[i]
        if size == BLOCK:
            size = random = 0
    i = len(must_be_random)
    while random > size // 2:
        i -= 1
        if kept[i] and must_be_random[i]:
            kept[i] = False
            size, random = size - 1, random - 1
    return kept


def _half(count: int) -> np.ndarray:
    """[blocks] int64: random pairs in each block."""
    starts = np.arange(0, count, BLOCK)
    return np.minimum(count - starts, BLOCK) // 2
