"""The word n-grams of texts, as hashes; many texts at a time."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pyarrow as pa

from data_prep.dedup.folding import IGNORED, SEPARATOR, decode, folding_table
from data_prep.hashing import mix
from data_prep.ragged import Ragged

_BASE = np.uint64(0x9E3779B97F4A7C15)
"""Odd, so that it has an inverse modulo 2^64."""
_INVERSE = np.uint64(pow(int(_BASE), -1, 1 << 64))
WITHOUT_SPACES = ((0x0E00, 0x0EFF), (0x1000, 0x109F), (0x1780, 0x17FF), (0x3040, 0x30FF), (0x3400, 0x9FFF),
                  (0xF900, 0xFAFF), (0x20000, 0x3FFFF))  # fmt: skip
"""Thai and Lao, Burmese, Khmer, kana, ideographs: nothing shows where a word ends, so each character is one."""


def shingle(texts: pa.StringArray, ngram: int) -> Ragged:
    """The uint64 hashes of the n-grams of words of every text.

    A word is a run of letters and digits as `folding.py` leaves them. A text with fewer than `ngram` words has
    one n-gram of all of them; one without words has none.
    """
    words = hash_words(texts)
    lengths = words.lengths
    total = len(words.values)
    # How many words each word has before and after it in its text.
    position = np.arange(total) - np.repeat(words.offsets[:-1], lengths)
    following = np.repeat(lengths, lengths) - position
    padded = np.concatenate([words.values, np.zeros(ngram, dtype=np.uint64)])
    sums = words.values.copy()
    with np.errstate(over="ignore"):
        for offset in range(1, ngram):
            own = padded[offset : offset + total] * _multiplier(offset)
            sums += np.where(following > offset, own, np.uint64(0))
    is_start = (following >= ngram) | (position == 0)
    counts = np.where(lengths >= ngram, lengths - ngram + 1, np.minimum(lengths, 1))
    offsets = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(counts)])
    return Ragged(mix(sums[is_start]), offsets)


def hash_words(texts: pa.StringArray) -> Ragged:
    """The uint64 hashes of the words of every text, in order."""
    points = decode(texts)
    hashes = _character_hashes()[points.values]
    kinds = (hashes & _KIND).astype(np.uint8)
    offsets = points.offsets
    ignored = kinds == _CHANGES_NOTHING
    if ignored.any():
        offsets = offsets - np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(ignored)])[offsets]
        hashes, kinds = hashes[~ignored], kinds[~ignored]
    before = np.concatenate([np.zeros(1, dtype=np.uint8), kinds[:-1]])
    before[offsets[:-1][np.diff(offsets) > 0]] = _SEPARATES
    starts = np.flatnonzero((kinds == _ALONE) | ((kinds == _JOINS) & (before != _JOINS)))
    if not len(starts):
        return Ragged(np.empty(0, dtype=np.uint64), np.zeros(len(texts) + 1, dtype=np.int64))
    # A word is the sum of its characters times powers of the base, divided by the power at its start.
    powers, inverses = _powers(1 << (len(hashes) - 1).bit_length())
    with np.errstate(over="ignore"):
        sums = np.add.reduceat(hashes * powers[: len(hashes)], starts) * inverses[starts]
    return Ragged(mix(sums), np.searchsorted(starts, offsets))


_KIND = np.uint64(3)
"""The bits of a character's hash that tell what it does to words."""
_SEPARATES, _JOINS, _ALONE, _CHANGES_NOTHING = 0, 1, 2, 3


@lru_cache(maxsize=1)
def _character_hashes() -> np.ndarray:
    """[code points] uint64 hash of what each is folded to, with its kind; 0 for separators."""
    folded = folding_table()
    kinds = np.full(len(folded), _JOINS, dtype=np.uint64)
    for first, last in WITHOUT_SPACES:
        kinds[first : last + 1] = _ALONE
    kinds[folded == IGNORED] = _CHANGES_NOTHING
    return np.where(folded == SEPARATOR, np.uint64(0), mix(folded.astype(np.uint64)) & ~_KIND | kinds)


@lru_cache(maxsize=2)
def _powers(count: int) -> tuple[np.ndarray, np.ndarray]:
    """[count] uint64 powers of the base and of its inverse, modulo 2^64."""
    with np.errstate(over="ignore"):
        powers = [np.full(count, value) for value in (_BASE, _INVERSE)]
        for each in powers:
            each[0] = 1
            np.cumprod(each, out=each)
    return powers[0], powers[1]


def _multiplier(offset: int) -> np.uint64:
    """An odd number for each place in an n-gram."""
    return mix(np.array([offset], dtype=np.uint64))[0] | np.uint64(1)
