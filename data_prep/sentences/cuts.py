"""From the places where sentences start to the places where a text is cut."""

from __future__ import annotations

import re

import numpy as np

from data_prep.ragged import Ragged

WHITE_SPACE = (
    *(*range(0x09, 0x0E), *range(0x1C, 0x21), 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B)),
    *(0x2028, 0x2029, 0x202F, 0x205F, 0x3000),
)
"""Code points of white space, as `str.isspace` has them."""
_ENCODED = [chr(code).encode() for code in WHITE_SPACE]
_WIDE = {size: np.array([int.from_bytes(c) for c in _ENCODED if len(c) == size]) for size in (2, 3)}
"""White space of two and of three bytes, as big-endian numbers."""
_WHITE_RUN = re.compile(
    b"(?:[%b]++|%b)*+"  # possessive, or a run of megabytes would be remembered character by character
    % (
        b"".join(re.escape(c) for c in _ENCODED if len(c) == 1),
        b"|".join(re.escape(c) for c in _ENCODED if len(c) > 1),
    )
)
_MAYBE_WHITE = np.isin(np.arange(256), [c[0] for c in _ENCODED])
"""[256] bool: whether white space may begin with a byte."""
_WINDOW_BYTES = 1 << 20


def cuts_ahead_of(starts: np.ndarray, data: np.ndarray, offsets: np.ndarray) -> Ragged:
    """Where to cut texts so that sentences start as given and after every line break.

    Args:
        starts: [sentences] int64 offsets in `data`, in any order.
        data: [bytes] uint8, the UTF-8 bytes of all texts end to end; not empty.
        offsets: [texts + 1] int64 where in `data` each text begins, and the last one ends.

    Returns:
        Per text the ascending byte offsets (int64) of its cuts; text stands ahead of each and behind it.
    """
    # Stable, because it is fast for what consists of a few ascending runs.
    ink = np.sort(_first_ink(data, np.concatenate([starts, _line_starts(data)])), kind="stable")
    ink = ink[(ink < len(data)) & (np.diff(ink, prepend=-1) > 0)]
    rows = np.searchsorted(offsets, ink, side="right") - 1
    own = ink > _first_ink(data, offsets[:-1])[rows]
    ink, rows = ink[own], rows[own]
    ends = np.cumsum(np.bincount(rows, minlength=len(offsets) - 1))
    return Ragged(_before_space(data, ink) - offsets[rows], np.concatenate([[0], ends]))


def _line_starts(data: np.ndarray) -> np.ndarray:
    """[lines] int64: right behind every line break, or behind the last of several in a row."""
    found = [np.empty(0, dtype=np.int64)]
    for first in range(0, len(data), _WINDOW_BYTES):
        window = data[first : first + _WINDOW_BYTES]
        narrow = np.flatnonzero((window == 0x0A) | (window == 0x0D)) + first + 1
        found.append(narrow[np.diff(narrow, append=-1) != 1])
        wide = np.flatnonzero(window == 0xE2) + first
        # U+2028 and U+2029 are E2 80 A8 and E2 80 A9.
        found.append(wide[(data[wide + 1] == 0x80) & (data[wide + 2] & 0xFE == 0xA8)] + 3)
    return np.concatenate(found)


def _first_ink(data: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """For each position the first byte at or behind it that is no white space; the length of `data` if none is."""
    found = positions.copy()
    unsure = np.flatnonzero(_MAYBE_WHITE[data.take(positions, mode="clip")])
    unsure = unsure[np.argsort(positions[unsure])]
    ascending = positions[unsure]
    done = 0
    while done < len(ascending):
        match = _WHITE_RUN.match(data, ascending[done])  # pyright: ignore[reportArgumentType, reportCallIssue]
        # All positions inside this run of white space end where it ends.
        same = max(done + 1, int(np.searchsorted(ascending, match.end())))
        found[unsure[done:same]] = match.end()
        done = same
    return found


def _before_space(data: np.ndarray, ink: np.ndarray) -> np.ndarray:
    """The start of the character ahead of each position where it is white space, elsewhere the position."""
    before = data[ink - 1]
    found = ink - (_MAYBE_WHITE[before] & (before < 0x80))
    unsure = np.flatnonzero(before >= 0x80)
    at = ink[unsure]
    last_two = data[at - 2].astype(np.int64) << 8 | data[at - 1]
    last_three = data[np.maximum(at - 3, 0)].astype(np.int64) << 16 | last_two
    found[unsure] -= 2 * np.isin(last_two, _WIDE[2]) + 3 * np.isin(last_three, _WIDE[3])
    return found
