"""Words that are too long for a trainer: one of a million letters would take it hours, and teach it nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache

import numpy as np
import regex

LETTERS_OR_DIGITS = (r"\p{L}", r"\p{N}", r"\s", r"[^\s\p{L}\p{N}]")
"""GPT-2's words (Radford et al. 2019) are runs of one of these."""
NO_PUNCTUATION = (r"[^\s\p{P}]",)
"""BERT's words are runs of this."""
NO_SPACE = (r"[!-~]", r"\s", r"(?![!-~])\p{L}", r"(?![!-~\s])\P{L}")
"""SentencePiece's words lie between spaces; letters beyond ASCII are runs for themselves, because in scripts without
spaces a word may be a paragraph."""
BETWEEN_SPACES = (r"\S",)
"""All that the cost of SentencePiece's training looks at: it grows with the square of what lies between two spaces."""
PARTS = 16
"""Parts of a long word that are trained on; more of them would teach nothing but this word."""


def cut_long_words(
    texts: Iterable[str], runs: tuple[str, ...], max_characters: int, parts: int | None = PARTS
) -> Iterator[str]:
    """Cut every longer run of the texts into parts, of which the first stay: one text ends with each of them, and
    another begins.

    Args:
        runs: kinds of characters, as regular expressions of one character; a run is of one kind.
        parts: how many parts of a run stay; None for all.
    """
    kinds = _kinds(runs)
    for text in texts:
        start = 0
        for first, last in _long_runs(text, kinds, max_characters):
            end = last if parts is None else min(last, first + parts * max_characters)
            for place in range(first + max_characters, end, max_characters):
                yield text[start:place]
                start = place
            if end < last:
                yield text[start:end]
                start = last
        yield text[start:]


def _long_runs(text: str, kinds: np.ndarray, max_characters: int) -> Iterator[tuple[int, int]]:
    """Starts and ends of runs of more characters."""
    if len(text) > max_characters:
        own = kinds[np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")]
        bounds = np.concatenate([[0], np.flatnonzero(own[1:] != own[:-1]) + 1, [len(own)]])
        for run in np.flatnonzero((np.diff(bounds) > max_characters) & (own[bounds[:-1]] > 0)).tolist():
            yield int(bounds[run]), int(bounds[run + 1])


@cache
def _kinds(runs: tuple[str, ...]) -> np.ndarray:
    """[code points] uint8: the number of each one's kind, counted from 1; 0 for characters of none."""
    # Lone surrogates are no characters; U+FFFF keeps the numbering.
    every = "".join(chr(n) if not 0xD800 <= n < 0xE000 else "\uffff" for n in range(0x110000))
    kinds = np.zeros(len(every), dtype=np.uint8)
    for number, pattern in enumerate(runs, start=1):
        for match in regex.finditer(rf"(?:{pattern})+", every):
            kinds[match.start() : match.end()] = number
    return kinds
