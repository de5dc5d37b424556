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
