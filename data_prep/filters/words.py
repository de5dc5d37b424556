"""The words and lines of a text, as several filters see them.

Filters in a chain look at the same text one after another, so the last answers are kept.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

import numpy as np

from data_prep.words import code_points, find_words

_LETTERS = 0x40000
"""Beyond lie neither letters nor white space."""


@dataclass(frozen=True, slots=True)
class WordSpans:
    """The words of a text by their places in it."""

    points: np.ndarray
    """[characters] uint32 code points of the text."""
    places: np.ndarray
    """[words] int64: word `i` is written as `points[places[i] : ends[i]]`."""
    ends: np.ndarray
    """[words] int64."""

    def __len__(self) -> int:
        return len(self.places)

    @property
    def lengths(self) -> np.ndarray:
        """[words] int64 characters of each."""
        return self.ends - self.places

    def count_listed(self, listed: ListedWords, enough: int) -> int:
        """How many of the listed words occur; counting stops at `enough`."""
        from data_prep.filters.word_counts_kernel import count_listed

        return count_listed(self.points, self.places, self.ends, listed.points, listed.bounds, enough)


@dataclass(frozen=True, slots=True)
class ListedWords:
    """Different words to look for."""

    points: np.ndarray
    """[characters] uint32 code points of all, end to end."""
    bounds: np.ndarray
    """[words + 1] int64: word `i` is `points[bounds[i] : bounds[i + 1]]`."""

    @classmethod
    def of(cls, words: Sequence[str]) -> ListedWords:
        """The words as they are written, each once."""
        different = list(dict.fromkeys(words))
        bounds = np.cumsum([0, *map(len, different)]).astype(np.int64)
        return cls(code_points("".join(different)), bounds)


@lru_cache(maxsize=1)
def points_of(text: str) -> np.ndarray:
    """[characters] uint32 code points of a text."""
    return code_points(text)


@lru_cache(maxsize=1)
def word_spans(text: str) -> WordSpans:
    """The words of a text: `data_prep.words` says what one is.

    Counting characters of scripts without spaces as words makes Chinese or Thai comparable in number, not in length:
    rules about the length of words need other limits there.
    """
    points = points_of(text)
    return WordSpans(points, *find_words(text, points))


@lru_cache(maxsize=1)
def words(text: str) -> tuple[str, ...]:
    """The words of a text as they are written."""
    found = word_spans(text)
    return tuple(map(text.__getitem__, map(slice, found.places.tolist(), found.ends.tolist())))


@lru_cache(maxsize=1)
def lines(text: str) -> tuple[str, ...]:
    """The lines that hold more than white space, without the white space around them."""
    return tuple(line for line in map(str.strip, text.split("\n")) if line)


def letter_runs(text: str) -> tuple[int, int]:
    """(Runs of characters other than white space, such runs that hold a letter)."""
    from data_prep.filters.word_counts_kernel import count_runs

    return count_runs(points_of(text), _classes())


@cache
def _classes() -> np.ndarray:
    """[code points + 1] uint8: 1 for white space, 2 for letters, 0 for all else, and in the last place."""
    every = "".join(map(chr, range(_LETTERS)))
    classes = np.zeros(_LETTERS + 1, np.uint8)
    for number, pattern in enumerate((r"\s+", r"[^\W\d_]+"), start=1):
        for match in re.finditer(pattern, every):
            classes[slice(*match.span())] = number
    return classes
