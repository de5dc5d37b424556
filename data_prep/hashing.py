"""Hashes of document ids: what decides, anywhere and without coordination, who is held out or sampled."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

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
    the length and `salt`; vectorised, because a corpus has as many ids as documents. Hashes of the same
    strings with different salts are independent of each other.
    """
    if len(strings) == 0:
        return np.empty(0, dtype=np.uint64)
    _, offsets_buffer, values_buffer = strings.buffers()
    offsets = np.frombuffer(offsets_buffer, dtype=np.int32)[
        strings.offset : strings.offset + len(strings) + 1
    ]
    offsets = offsets.astype(np.int64)
    lengths = np.diff(offsets)
    values = np.frombuffer(values_buffer, dtype=np.uint8) if values_buffer else np.empty(0, dtype=np.uint8)
    values = values[offsets[0] : offsets[-1]].astype(np.uint64)
    starts = offsets[:-1] - offsets[0]
    positions = np.arange(len(values)) - np.repeat(starts, lengths)
    multipliers = mix(np.arange(int(lengths.max()), dtype=np.uint64)) | np.uint64(1)
    with np.errstate(over="ignore"):
        products = (values + np.uint64(1)) * multipliers[positions]
        sums = np.concatenate([np.zeros(1, dtype=np.uint64), np.cumsum(products, dtype=np.uint64)])
        totals = sums[starts + lengths] - sums[starts] + lengths.astype(np.uint64) * _GOLDEN
    return mix(totals ^ mix(np.array([salt], dtype=np.uint64)))


def as_fraction(hashes: np.ndarray) -> np.ndarray:
    """[n] float64 in [0, 1), uniform when the hashes are."""
    return (hashes >> np.uint64(11)) * 2.0**-53
