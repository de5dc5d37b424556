"""The compiled loops of `blingfire.py`; calling nothing of other files, they are never older than they are."""

from __future__ import annotations

import numpy as np

from cluster.compiled_loop import compiled_loop

SPACE, BRACKET, LETTER, DIGIT, WIDE, END, WIDE_END = 1, 2, 3, 4, 5, 6, 7
"""Classes of bytes: white space, what begins a reference or a bullet, letters, digits, bytes of characters beyond
ASCII, the end of a sentence, the first byte of characters beyond ASCII some of which end sentences; 0 for others."""
CODES = 1 << 16
"""Code points whose classes are known: `LETTER`, `END`, or 0."""
_SEPARATOR = np.frombuffer("\ue000 ".encode(), dtype=np.uint8)
"""Between texts, and between parts of a text: a character that is in none of BlingFire's rules, so that none applies
across it; and a space, which rules that know the beginning of a text take for it."""
SEPARATOR_BYTES = len(_SEPARATOR)
_WORTH_LEAVING_OUT = 24
_CONTEXT_TOKENS = 8
"""Tokens in which a reference, such as `[ citation needed ]` or `: 162 - 164`, ends."""
_SHORT = 4
"""Bytes of the second part of an abbreviation such as `ad loc.`"""
_FIRST_QUOTE, _LAST_QUOTE, _LEFT_GUILLEMET, _RIGHT_GUILLEMET = 0x2018, 0x2026, 0xAB, 0xBB
"""Punctuation beyond ASCII that ends texts: quotation marks, daggers, bullets and dots."""


@compiled_loop
def _character(data: np.ndarray, place: int, stop: int) -> tuple:
    """(code point, bytes) of the character beyond ASCII at `place`; no byte from `stop` on is read."""
    byte = np.int64(data[place])
    width = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
    code = byte & (0x7F >> width)
    for k in range(1, width):
        code = code << 6 | np.int64(data[min(place + k, stop - 1)]) & 0x3F
    return code, width


@compiled_loop
def _next_end(data: np.ndarray, place: int, stop: int, classes: np.ndarray, codes: np.ndarray) -> int:
    """The first mark at or behind `place` that may end a sentence; `stop` if none does."""
    while place < stop:
        kind = classes[data[place]]
        if kind >= END:
            if kind == END:
                break
            code, _ = _character(data, place, stop)
            if code < CODES and codes[code] == END:
                break
        place += 1
    return place


@compiled_loop
def _needs_its_end(text: np.ndarray, first: int, stop: int, classes: np.ndarray, codes: np.ndarray) -> bool:
    """Whether BlingFire may begin a sentence in a text only because the text ends: in punctuation by itself, such as
    the bracket of `(He left. )`.

    Its rule for the end of a text reads from a mark that may end a sentence over punctuation and white space only.
    Behind a letter or digit, where no white space stands between, it finds the end of a sentence that is the text's.
    """
    while stop > first and classes[text[stop - 1]] == SPACE:
        stop -= 1
    while stop > first:
        last = stop - 1
        while last > first and text[last] & 0xC0 == 0x80:
            last -= 1
        kind = classes[text[last]]
        if kind in (LETTER, DIGIT):
            return False
        if kind in (WIDE, WIDE_END):
            code, _ = _character(text, last, stop)
            if code < CODES and codes[code] == LETTER:
                return False
            is_quote = _FIRST_QUOTE <= code <= _LAST_QUOTE
            if not is_quote and code != _LEFT_GUILLEMET and code != _RIGHT_GUILLEMET:
                return True
        elif text[last] <= 0x20 or text[last] == 0x7F:
            return True
        stop = last
    return True


@compiled_loop
def _copy(
    data: np.ndarray, first: int, stop: int, copied: np.ndarray, size: int, parts: np.ndarray, count: int
) -> int:
    """Put a part behind `size` bytes and `count` parts; returns the bytes with it."""
    for k in range(stop - first):
        copied[size + k] = data[first + k]
    after = size + stop - first
    parts[count, 0], parts[count, 1], parts[count, 2] = size, after, first
    return after


@compiled_loop
def _separate(copied: np.ndarray, size: int) -> int:
    """Put a separator behind `size` bytes; returns the bytes with it."""
    for k in range(SEPARATOR_BYTES):
        copied[size + k] = _SEPARATOR[k]
    return size + SEPARATOR_BYTES


@compiled_loop
def _excerpt(
    data: np.ndarray,
    start: int,
    end: int,
    classes: np.ndarray,
    codes: np.ndarray,
    copied: np.ndarray,
    size: int,
    parts: np.ndarray,
    count: int,
) -> tuple:
    """One text of `join_excerpts`, put behind `size` bytes and `count` parts; returns both with it."""
    first = stop = place = previous = start
    needed = 0
    is_open = is_reference = False
    while place < end:
        if needed == 0:
            token = _next_end(data, place, end, classes, codes)
            if token == end:
                break
            while token > place and classes[data[token - 1]] != SPACE:
                token -= 1
            before = token
            while before > place and classes[data[before - 1]] == SPACE:
                before -= 1
            if before > place:
                while before > place and classes[data[before - 1]] != SPACE:
                    before -= 1
                previous = before
            place = token
        elif classes[data[place]] == SPACE:
            place += 1
            continue
        token, mark = place, np.int64(-1)
        plain, decided, bracket = False, False, False
        while place < end:
            kind = classes[data[place]]
            if kind == SPACE:
                break
            width = 1
            if kind in (WIDE, WIDE_END):
                code, width = _character(data, place, end)
                kind = codes[code] if code < CODES else 0
            if kind == END:
                if mark < 0:
                    mark = place
            elif kind == BRACKET:
                bracket = True
            elif not decided and (kind in (LETTER, DIGIT)):
                decided, plain = True, kind == LETTER
            place += width
        place = min(place, end)
        if mark >= 0 or needed:
            begin = previous if mark >= 0 and mark - token <= _SHORT else token
            # The white space around a part is a part of it.
            begin = stop if needed else max(begin - 1, start)
            if not is_open or begin > stop + _WORTH_LEAVING_OUT:
                if is_open:
                    size = _copy(data, first, stop, copied, size, parts, count)
                    size, count = _separate(copied, size), count + 1
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
        size = _copy(data, first, stop, copied, size, parts, count)
        count += 1
    return size, count


@compiled_loop
def join_excerpts(
    data: np.ndarray,
    starts: np.ndarray,
    stops: np.ndarray,
    text: int,
    classes: np.ndarray,
    codes: np.ndarray,
    copied: np.ndarray,
    parts: np.ndarray,
) -> tuple:
    """Copy what is near marks that may end sentences, of as many texts as there is room for or as may be joined.

    From such a mark BlingFire's rules look back to the white space ahead of its token (an abbreviation may have one
    space), and ahead to the first word; behind numbers and brackets, a few tokens further.

    Args:
        data: uint8 UTF-8; text `t` is `data[starts[t] : stops[t]]`.
        starts, stops: [texts] int64.
        text: the first text that is copied.
        classes: [256] uint8 of bytes.
        codes: [CODES] uint8, classes of code points beyond ASCII.
        copied: uint8 with room for the longest text and a separator, filled in.
        parts: [parts, 3] int64, filled in: where each part begins and ends in `copied`, and begins in `data`. There is
            room for `1 + len(copied) // SEPARATOR_BYTES`.

    Returns:
        (the next text, bytes copied, parts)
    """
    size = count = 0
    while text < len(starts) and size + stops[text] - starts[text] + SEPARATOR_BYTES <= len(copied):
        before = size
        size, count = _excerpt(data, starts[text], stops[text], classes, codes, copied, size, parts, count)
        text += 1
        if size > before:
            if _needs_its_end(copied, before, size, classes, codes):
                break
            size = _separate(copied, size)
    return text, size, count
