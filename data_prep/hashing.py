"""Hashes of document ids: what decides, anywhere and without coordination, who is held out or sampled."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from data_prep.ragged import string_offsets

if TYPE_CHECKING:
    import pyarrow as pa

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1, _MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def mix(values: np.ndarray) -> np.ndarray:
    """Scatter uint64 values over the whole range (the output function of SplitMix64, Steele et al. 2014)."""
    with np.errstate(over="ignore"):
        values = values + _GOLDEN
        values = (values ^ (values >> np.uint64(30))) * _MIX_1
        values = (values ^ (values >> np.uint64(27))) * _MIX_2
    return values ^ (values >> np.uint64(31))


def hash_strings(strings: pa.StringArray, salt: int = 0) -> np.ndarray:
    """[n] uint64 hashes of the UTF-8 bytes of `strings`, the same on every machine and in every batch.

    A sum of the bytes times one pseudo-random odd number per position (multilinear hashing), then mixed with
    the length and `salt`; compiled, because a corpus has as many ids as documents. Hashes of the same strings with
    different salts are independent of each other.
    """
    hashes = np.empty(len(strings), dtype=np.uint64)
    if len(strings) == 0:
        return hashes
    from data_prep.hash_kernel import hash_between, longest_of

    offsets = string_offsets(strings)
    values = np.frombuffer(strings.buffers()[2] or b"", dtype=np.uint8)
    multipliers = mix(np.arange(longest_of(offsets), dtype=np.uint64)) | np.uint64(1)
    hash_between(values, offsets, multipliers, mix(np.array([salt], dtype=np.uint64))[0], hashes)
    return hashes


def as_fraction(hashes: np.ndarray) -> np.ndarray:
    """[n] float64 in [0, 1), uniform when the hashes are."""
    return (hashes >> np.uint64(11)) * 2.0**-53
