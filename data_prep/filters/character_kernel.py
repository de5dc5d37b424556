"""The compiled loops over the characters of one text; calling nothing of other files, they are never older than they
are."""

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
def find_pair(points: np.ndarray, start: int, classes: np.ndarray, pairs: np.ndarray) -> int:
    """The first place from `start` on where two neighbours are one of some pairs; -1 where there is none.

    Args:
        points: [characters] uint32 code points.
        classes: uint8 by code point; the last but one for all beyond, the last for the end of the text.
        pairs: [classes, classes] bool.
    """
    beyond = np.int64(len(classes) - 2)
    for place in range(start, len(points)):
        own = classes[min(np.int64(points[place]), beyond)]
        following = (
            classes[min(np.int64(points[place + 1]), beyond)]
            if place + 1 < len(points)
            else classes[beyond + 1]
        )
        if pairs[own, following]:
            return int(place)
    return -1
