"""Which n-grams of words a text repeats, exactly and without comparing strings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class RepeatedNgrams:
    """The n-grams of one length that occur at least twice."""

    n: int
    starts: np.ndarray
    """[occurrences] int64 ascending numbers of the words where they start, first occurrences included."""
    groups: np.ndarray
    """[occurrences] int64: equal where the n-grams are."""

    def later_starts(self) -> np.ndarray:
        """Without the first occurrence of each."""
        later = np.ones(len(self.starts), dtype=bool)
        later[np.unique(self.groups, return_index=True)[1]] = False
        return self.starts[later]

    def covered(self, starts: np.ndarray, num_words: int) -> np.ndarray:
        """[num_words] bool: the words inside the n-grams at `starts`; overlaps count once."""
        opened = np.bincount(starts, minlength=num_words + 1)
        closed = np.bincount(starts + self.n, minlength=num_words + 1)
        return np.cumsum(opened - closed)[:num_words] > 0


def number_words(words: Sequence[str]) -> np.ndarray:
    """[words] int64: equal numbers for equal words, in order of first occurrence."""
    numbers: dict[str, int] = {}
    return np.fromiter((numbers.setdefault(word, len(numbers)) for word in words), np.int64, len(words))


def repeated_ngrams(numbers: np.ndarray, lengths: Sequence[int]) -> Iterator[RepeatedNgrams]:
    """The repeated n-grams for each n of `lengths`, ascending and from 2.

    An n-gram can only be repeated where its first n-1 words are, so each length looks only at what the one before
    has left: work shrinks fast on ordinary text.

    Args:
        numbers: [words] int64 as `number_words` gives them, fewer than 2**31.
    """
    starts, groups = np.arange(len(numbers)), numbers
    for n in range(2, max(lengths, default=1) + 1):
        inside = starts + n <= len(numbers)
        starts, groups = starts[inside], groups[inside]
        # Both factors are below 2**31, so a pair is one int64 and equal pairs are equal n-grams.
        pairs = groups * len(numbers) + numbers[starts + n - 1]
        _, groups, counts = np.unique(pairs, return_inverse=True, return_counts=True)
        repeated = counts[groups] > 1
        starts, groups = starts[repeated], groups[repeated]
        if n in lengths:
            yield RepeatedNgrams(n, starts, groups)
