"""Where numbers may begin in a text, from one pass over its characters: most texts hold few such places, and an
expression that is tried at every character takes ten times as long."""

from __future__ import annotations

from functools import cache

import numpy as np
import regex

from data_prep.filters.words import points_of

_LETTERS = 0x40000
"""Beyond lie no digits."""


def digit_runs(text: str, separators: str, least: int, most_between: int) -> list[tuple[int, int]]:
    """Spans of at least `least` digits of any script with at most `most_between` separators between two of them.

    Args:
        separators: all separators.
    """
    from data_prep.filters.personal.hint_kernel import find_runs

    points = points_of(text)
    spans = np.empty((len(points) // least + 1, 2), np.int64)
    count = find_runs(points, _digits_and_separators(separators), least, most_between, spans)
    return [(start, end) for start, end in spans[:count].tolist()]


def iban_places(text: str) -> list[int]:
    """Where two letters and two digits begin, with no letter or digit before them; all of them in ASCII."""
    from data_prep.filters.personal.hint_kernel import find_ibans

    points = points_of(text)
    places = np.empty(len(points) // 4 + 1, np.int64)
    return places[: find_ibans(points, _ascii_classes(), places)].tolist()


@cache
def _digits_and_separators(separators: str) -> np.ndarray:
    """[code points + 1] uint8: 1 for digits, 2 for separators."""
    classes = np.zeros(_LETTERS + 1, np.uint8)
    for match in regex.finditer(r"\d+", "".join(map(chr, range(_LETTERS)))):
        classes[slice(*match.span())] = 1
    classes[[ord(separator) for separator in separators]] = 2
    return classes


@cache
def _ascii_classes() -> np.ndarray:
    """[128 + 1] uint8: 1 for digits, 2 for letters."""
    classes = np.zeros(129, np.uint8)
    for number, first, last in ((1, "0", "9"), (2, "A", "Z"), (2, "a", "z")):
        classes[ord(first) : ord(last) + 1] = number
    return classes
