"""The compiled loop of `blingfire.py`; calling nothing of other files, it is never older than it is."""

from __future__ import annotations

import numpy as np
from numba import njit

SPACE, END, LEAD, BRACKET, LETTER, DIGIT = 1, 2, 3, 4, 5, 6
"""Classes of bytes: white space, the end of a sentence, the first byte of a character beyond ASCII, what begins a
reference or a bullet, letters, digits; 0 for others."""
LETTER_CODES = 1 << 16
"""Code points of which it is known whether they are letters."""
SEPARATOR_BYTES = 6
_SEPARATOR = np.frombuffer(b"xxxxx ", dtype=np.uint8)
"""Between parts: a word too long for a part of an abbreviation, and none that begins a sentence."""
_WORTH_LEAVING_OUT = 4 * SEPARATOR_BYTES
_CONTEXT_TOKENS = 8
"""Tokens in which a reference, such as `[ citation needed ]` or `: 162 - 164`, ends."""
_SHORT = 4
"""Bytes of the second part of an abbreviation such as `ad loc.`"""


@njit(cache=True, nogil=True)
def excerpt(
    data: np.ndarray,
    start: int,
    end: int,
    classes: np.ndarray,
    letters: np.ndarray,
    ends: np.ndarray,
    copied: np.ndarray,
    places: np.ndarray,
    origins: np.ndarray,
) -> tuple:
    """Copy what is near marks that may end sentences, with a word of small letters for all that is left out between.

    From such a mark BlingFire's rules look back to the white space ahead of its token (an abbreviation may have one
    space), and ahead to the first word; behind numbers and brackets, a few tokens further.

    Args:
        data: uint8 UTF-8 text, of which `data[start:end]` is read.
        classes: [256] uint8 of bytes.
        letters: [LETTER_CODES] bool, by code point.
        ends: int64 code points beyond ASCII that may end a sentence, ascending.
        copied: uint8, as long as the text, filled in.
        places, origins: int64, filled in: where each part begins in `copied`, and in `data`.

    Returns:
        (bytes copied, parts)
    """
    size = parts = 0
    first = stop = place = previous = start
    needed = 0
    is_open = is_reference = False
    while place < end:
        if classes[data[place]] == SPACE:
            place += 1
            continue
        token, mark = place, np.int64(-1)
        plain, decided, bracket = False, False, False
        while place < end:
            kind = classes[data[place]]
            if kind == SPACE:
                break
            width = 1
            if kind == LEAD:
                byte = np.int64(data[place])
                width = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
                code = byte & (0x7F >> width)
                for k in range(1, width):
                    code = code << 6 | np.int64(data[min(place + k, end - 1)]) & 0x3F
                if code < LETTER_CODES and letters[code]:
                    kind = LETTER
                elif ends[min(np.searchsorted(ends, code), len(ends) - 1)] == code:
                    kind = END
            if kind == END:
                if mark < 0:
                    mark = place
            elif kind == BRACKET:
                bracket = True
            elif not decided and kind in (LETTER, DIGIT):
                decided, plain = True, kind == LETTER
            place += width
        place = min(place, end)
        if mark >= 0 or needed:
            begin = previous if mark >= 0 and mark - token <= _SHORT else token
            # The white space around a part is a part of it.
            begin = stop if needed else max(begin - 1, start)
            if not is_open or begin > stop + _WORTH_LEAVING_OUT:
                if is_open:
                    places[parts], origins[parts] = size, first
                    copied[size : size + stop - first] = data[first:stop]
                    size += stop - first
                    copied[size : size + SEPARATOR_BYTES] = _SEPARATOR
                    size += SEPARATOR_BYTES
                    parts += 1
                first, is_open = begin, True
            stop = min(place + 1, end)
            needed = _CONTEXT_TOKENS if mark >= 0 else needed - decided
            is_reference = bracket or (is_reference and mark < 0)
            if mark < 0 and plain and not is_reference:
                after = place
                while after < end and classes[data[after]] == SPACE:
                    after += 1
                needed = 1 if after < end and data[after] == ord(")") else 0
        previous = token
    if is_open:
        places[parts], origins[parts] = size, first
        copied[size : size + stop - first] = data[first:stop]
        size += stop - first
        parts += 1
    return size, parts
