"""The compiled loops over the characters of one text; calling nothing of other files, they are never older than they
are."""

from __future__ import annotations

import numpy as np

from cluster.compiled_loop import compiled_loop


@compiled_loop
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


@compiled_loop
def find_pair(
    points: np.ndarray, start: int, classes: np.ndarray, pairs: np.ndarray, first_beginning: int
) -> int:
    """The first place from `start` on where two neighbours are one of some pairs; -1 where there is none.

    Args:
        points: [characters] uint32 code points.
        classes: uint8 by code point; the last but one for all beyond, the last for the end of the text.
        pairs: [classes, classes] bool.
        first_beginning: the first class that begins a pair.
    """
    beyond = np.int64(len(classes) - 2)
    for place in range(start, len(points)):
        own = classes[min(np.int64(points[place]), beyond)]
        if own < first_beginning:
            continue
        following = (
            classes[min(np.int64(points[place + 1]), beyond)]
            if place + 1 < len(points)
            else classes[beyond + 1]
        )
        if pairs[own, following]:
            return int(place)
    return -1


@compiled_loop
def mark_lines(
    points: np.ndarray,
    classes: np.ndarray,
    transitions: np.ndarray,
    counted: np.ndarray,
    least: int,
    lines: np.ndarray,
) -> int:
    """Fill in the numbers of the lines in which a word of an automaton ends, a character stands that may be several, or
    `least` counted characters do; returns how many lines there are.

    Args:
        points: [characters] uint32 code points.
        classes: uint16 by code point, the last for all beyond; 1 is a line feed.
        transitions: int32 by state and class, in one row: four times the place at which the next state begins, 2 more
            where a line is found by the character, and 1 more where it is counted or ends the line.
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
