"""The compiled loops of `hints.py`; calling nothing of other files, they are never older than they are."""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def find_runs(
    points: np.ndarray, classes: np.ndarray, least: int, most_between: int, spans: np.ndarray
) -> int:
    """Fill in where runs of at least `least` digits begin and end, at most `most_between` separators between two of
    them; returns the number of runs.

    Args:
        points: [characters] uint32 code points.
        classes: uint8 by code point, the last for all beyond: 1 for digits, 2 for separators.
        spans: [characters // least + 1, 2] int64.
    """
    beyond = np.int64(len(classes) - 1)
    num_runs = digits = first = last = np.int64(0)
    for place in range(len(points) + 1):
        own = classes[min(np.int64(points[place]), beyond)] if place < len(points) else np.uint8(0)
        if own == 1 and digits and place - last - 1 <= most_between:
            digits += 1
            last = place
        elif own != 2 or place - last > most_between:
            if digits >= least:
                spans[num_runs, 0], spans[num_runs, 1] = first, last + 1
                num_runs += 1
            digits = np.int64(own == 1)
            first = last = np.int64(place)
    return int(num_runs)


@njit(cache=True, nogil=True)
def find_ibans(points: np.ndarray, classes: np.ndarray, places: np.ndarray) -> int:
    """Fill in where two capitals and two digits begin with no letter or digit before them; returns how many there are.

    Args:
        points: [characters] uint32 code points.
        classes: [128] uint8: 1 for digits, 2 for capitals, 3 for small letters.
        places: [characters // 4 + 1] int64.
    """
    count, before = np.int64(0), np.uint8(0)
    for place in range(len(points) - 3):
        point = points[place]
        own = classes[point] if point < 128 else np.uint8(0)
        if own == 2 and before == 0:
            second, third, fourth = points[place + 1], points[place + 2], points[place + 3]
            if (
                second < 128
                and classes[second] == 2
                and third < 128
                and classes[third] == 1
                and fourth < 128
                and classes[fourth] == 1
            ):
                places[count] = place
                count += 1
        before = own
    return int(count)
