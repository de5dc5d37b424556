"""The compiled loops over the characters of one text.

They call no function of another file, so numba's cache is never stale.
"""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def kinds_of(points: np.ndarray, kinds: np.ndarray) -> int:
    """The bits of all characters of a text together.

    Args:
        points: [characters] uint32 code points.
        kinds: uint8 bits by code point, the last for all beyond.
    """
    beyond, found = np.int64(len(kinds) - 1), np.uint8(0)
    for place in range(len(points)):
        found |= kinds[min(np.int64(points[place]), beyond)]
    return int(found)


@njit(cache=True, nogil=True)
def mark_lines(
    points: np.ndarray,
    classes: np.ndarray,
    transitions: np.ndarray,
    counted: np.ndarray,
    least: int,
    lines: np.ndarray,
) -> int:
    """Fill in the indices of lines with the end of a word of an automaton, a character that may be several, or `least`
    counted characters; returns the number of lines.

    Args:
        points: [characters] uint32 code points.
        classes: uint16 by code point, the last for all beyond; 1 is a line feed.
        transitions: int32 by state and class, in one row: four times the start of the next state, plus 2 where
            the character finds a line, plus 1 where it is counted or ends the line.
        counted: [classes] bool.
        lines: [lines] int64.
    """
    beyond = np.int64(len(classes) - 1)
    state = count = line = num_marked = np.int64(0)
    for place in range(len(points)):
        own = classes[min(np.int64(points[place]), beyond)]
        entry = np.int64(transitions[state + own])
        state = entry >> 2
        if not entry & 3:
            continue
        if own == 1:
            count = np.int64(0)
            line += 1
            continue
        count += counted[own]
        if (entry & 2 or count >= least) and (num_marked == 0 or lines[num_marked - 1] != line):
            lines[num_marked] = line
            num_marked += 1
    return int(num_marked)


# -- where digits stand --------------------------------------------------------------------------------------


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
        if own != 1 and not digits:
            continue
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
    """Fill in where two letters and two digits begin with no letter or digit before them; returns how many there are.

    Args:
        points: [characters] uint32 code points.
        classes: [129] uint8 by code point, the last for all beyond: 1 for digits, 2 for letters.
        places: [characters // 4 + 1] int64.
    """
    count, beyond = np.int64(0), np.uint32(len(classes) - 1)
    for place in range(len(points) - 3):
        if (
            classes[min(points[place], beyond)] == 2
            and classes[min(points[place + 1], beyond)] == 2
            and classes[min(points[place + 2], beyond)] == 1
            and classes[min(points[place + 3], beyond)] == 1
            and (place == 0 or classes[min(points[place - 1], beyond)] == 0)
        ):
            places[count] = place
            count += 1
    return int(count)
