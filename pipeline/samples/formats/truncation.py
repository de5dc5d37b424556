"""Shortening pairs of segments: the outcome of BERT's token-by-token process, computed directly.

BERT's released code removes one token at a time from the longer segment (from the second where both are equal), at
its front or its back by the toss of a coin, until the pair fits.
"""

from __future__ import annotations

import numpy as np

from cluster.compiled_loop import compiled_loop
from pipeline.samples.noise.kernels import fold

_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)
_BITS = 64


@compiled_loop
def removed_from_each(first: int, second: int, longest: int) -> tuple[int, int]:
    """The tokens that segments of the given lengths lose until they have `longest` together.

    The longer one shrinks to the length of the other; then they take turns, the second before the first.
    """
    excess = max(first + second - longest, 0)
    alone = min(excess, abs(first - second))
    rest = excess - alone
    from_first, from_second = rest // 2, rest - rest // 2
    return (from_first + alone, from_second) if first > second else (from_first, from_second + alone)


@compiled_loop
def removed_in_front(removed: int, state: np.uint64) -> int:
    """The number of a segment's removed tokens that are taken from its front: heads among `removed` fair coins.

    Coin `k` is bit `k % 64` of the draw `fold(state, k // 64)`.
    """
    heads = 0
    for word in range((removed + _BITS - 1) // _BITS):
        coins = fold(state, np.uint64(word))
        left = removed - word * _BITS
        if left < _BITS:
            coins &= _ALL >> np.uint64(_BITS - left)
        heads += _ones(coins)
    return heads


@compiled_loop
def _ones(bits: np.uint64) -> int:
    """The number of bits that are set."""
    count = 0
    while bits:
        bits &= bits - np.uint64(1)
        count += 1
    return count
