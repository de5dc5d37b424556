"""The compiled loop of `hashing.hash_strings`; calling nothing of other files, it is never older than they are."""

from __future__ import annotations

import numpy as np

from cluster.compiled_loop import compiled_loop

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1, _MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_ONE, _S30, _S27, _S31 = (np.uint64(number) for number in (1, 30, 27, 31))


@compiled_loop
def longest_of(offsets: np.ndarray) -> int:
    """The longest of the strings between neighbouring offsets."""
    longest = np.int64(0)
    for i in range(len(offsets) - 1):
        longest = max(longest, np.int64(offsets[i + 1]) - np.int64(offsets[i]))
    return int(longest)


@compiled_loop
def hash_between(
    values: np.ndarray, offsets: np.ndarray, multipliers: np.ndarray, salt: np.uint64, hashes: np.ndarray
) -> None:
    """Fill in the hash of every string.

    Args:
        values: uint8 bytes of all strings.
        offsets: [n + 1] int32: string `i` is `values[offsets[i] : offsets[i + 1]]`.
        multipliers: uint64, odd, one for each position of the longest string.
        salt: what enters the mix of every hash.
        hashes: [n] uint64.
    """
    for i in range(len(hashes)):
        first, size = np.int64(offsets[i]), np.int64(offsets[i + 1]) - np.int64(offsets[i])
        total = np.uint64(size) * _GOLDEN
        for k in range(size):
            total += (np.uint64(values[first + k]) + _ONE) * multipliers[k]
        mixed = (total ^ salt) + _GOLDEN
        mixed = (mixed ^ (mixed >> _S30)) * _MIX_1
        mixed = (mixed ^ (mixed >> _S27)) * _MIX_2
        hashes[i] = mixed ^ (mixed >> _S31)
