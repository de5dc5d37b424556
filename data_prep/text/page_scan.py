"""The compiled loops that cut an HTML page into tokens: texts, and the tags that change something, with their roles.

A role follows from a tag, from its machine-readable marks, and from the words of its classes and id; names and words
are looked up by their FNV-1a hashes. numba recompiles a function only when its own file changes, so these loops call
nothing of other files.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

Table = tuple[np.ndarray, np.ndarray]
"""An open table of a power of two: uint64 hashes of names, and int32 values with one more bit, which is set."""


class Tables(NamedTuple):
    """The tables of names that a page is read with."""

    tags: Table
    """What tags do."""
    attributes: Table
    """Attributes that may name a role."""
    pages: Table
    """Tags whose names describe the page as a whole."""
    marks: Table
    """Values of machine-readable attributes."""
    words: Table
    """Hints that words of a name give."""
    states: Table
    """Beginnings of names that mean a state or a subject."""


TOKEN = np.dtype(
    [(name, np.int32) for name in ("kind", "value", "first", "end", "other", "flags", "role", "key")],
    align=True,
)
"""A token: its kind; what the tag does; the characters of a text, or the bytes of a tag's contents; of a START its END,
flags, role, and a hash of tag and classes."""
TEXT, START, END = 0, 1, 2
"""Kinds of tokens."""
BLOCK, TRANSPARENT, REMOVED, UNSEEN, INLINE, LINK, BREAK, CELL = range(8)
"""Effects of a tag on the text: ends a block; nothing; leaves with its content; hides its content; may open a block in
the midst of a line, `<a>` among these; breaks a line; opens a table's cell."""
INHERITED = 15
"""The kind of blocks in an element that leaves it as it is."""
KIND_BITS, ROLE_BITS = 3, 7
TITLE, SUBSTANCE, HEADER, LANDMARK = 1 << 10, 1 << 11, 1 << 12, 1 << 13
"""Bits of a tag: its effect in the lowest three, the kind of its blocks in four, its role in three, and flags: the
page's title, elements that may hold tables or headings besides what their names mean, headers, and landmarks that hold
what a page is about."""
HAS_ATTRIBUTES, HAS_PROSE = 1, 4
"""Flags of a token: attributes at all, a run of prose within."""
SPACE, WIDE = np.uint32(1 << 31), np.uint32(1 << 30)
"""Bits of a character beside its code point: it is white space; it writes a syllable or a word."""
_OFFSET, _PRIME = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)
"""Constants of FNV-1a."""
_REPLACED = 0xFFFD


@njit(cache=True, nogil=True)
def _look_up(table: Table, name: np.uint64) -> int:
    """The value of a name's hash; -1 for others."""
    names, values = table
    place = np.int64(name) & (len(names) - 1)
    while values[place]:
        if names[place] == name:
            return int(np.int64(values[place]) >> 1)
        place = (place + 1) & (len(names) - 1)
    return -1


@njit(cache=True, nogil=True)
def _hash(data: np.ndarray, first: int, end: int, found: np.uint64) -> np.uint64:
    """Continue a hash with bytes of the page."""
    for place in range(first, end):
        found = (found ^ np.uint64(data[place])) * _PRIME
    return found


# -- roles ---------------------------------------------------------------------------------------------------

CLASS, ID, ITEMPROP, PROPERTY, HIDDEN, ARIA_HIDDEN, STYLE, ROLE, NUM_ATTRIBUTES = range(9)
NAME_BITS, START_BIT, END_BIT = 7, 3, 1 << 6
"""Bits of a word's value in a name: its role as a name, its role as the beginning of a word, and whether it ends
others."""
STATED_BITS, ARIA, TRUE = 7, 1 << 3, 1 << 4
"""Bits of the value of an attribute: the role that it states, whether it is a role of ARIA without text of the page,
and whether it says yes."""
_LONGEST_NAME, _SHORTEST_START, _LONGEST_START = 4, 5, 9
"""Words, and characters."""
_MAX_NAME_BYTES = 400
"""Most bytes of an element's classes and id together; longer ones are generated, and say nothing."""
_BODY_ROLE, _DETAIL_ROLE, _ASIDE_ROLE, _OTHERS_ROLE, _HIDDEN_ROLE = 1, 2, 3, 4, 5


@njit(cache=True, nogil=True)
def _is_state(data: np.ndarray, first: int, end: int, states: Table) -> bool:
    """Whether a name means a state or a subject."""
    found = _OFFSET
    for place in range(first, min(end, first + 10)):
        byte = data[place]
        if (byte == 45 or byte == 95) and _look_up(states, found) >= 0:  # - or _
            return True
        found = (found ^ np.uint64(byte)) * _PRIME
    return False


@njit(cache=True, nogil=True)
def _split(data: np.ndarray, first: int, end: int, bounds: np.ndarray) -> int:
    """Fill in where the words of a name begin and end, [words, 2]; a capital begins one. Returns their number."""
    count, place = 0, first
    while place < end:
        start = place
        is_upper = 65 <= data[place] <= 90
        place += is_upper
        while place < end and (97 <= data[place] <= 122 or 48 <= data[place] <= 57):
            place += 1
        if is_upper and place == start + 1:
            while place < end and 65 <= data[place] <= 90:
                place += 1
        if place == start:
            place += 1
            if data[start] == 38:  # & of a reference
                while place < end and data[place - 1] != 59:
                    place += 1
            continue
        bounds[count, 0], bounds[count, 1] = start, place
        count += 1
    return count


@njit(cache=True, nogil=True)
def _lower(byte: int) -> np.uint64:
    return np.uint64(byte + 32 if 65 <= byte <= 90 else byte)


@njit(cache=True, nogil=True)
def _role_of_name(data: np.ndarray, first: int, end: int, words: Table, bounds: np.ndarray) -> int:
    """The role that the words of a name mean; they may be written together."""
    role, count = 0, _split(data, first, end, bounds)
    for number in range(count):
        found, has_start = _OFFSET, False
        for following in range(number, min(count, number + _LONGEST_NAME)):
            start = bounds[following, 0]
            for place in range(start, bounds[following, 1]):
                found = (found ^ _lower(data[place])) * _PRIME
                length = place + 1 - start
                if following == number and _SHORTEST_START <= length <= _LONGEST_START:
                    value = _look_up(words, found)
                    if value > 0 and value >> START_BIT & NAME_BITS:
                        role, has_start = max(role, value >> START_BIT & NAME_BITS), True
            value = _look_up(words, found)
            if value > 0:
                role = max(role, value & NAME_BITS)
        last = bounds[number, 1]
        for length in (7, 8):
            if not has_start and last - bounds[number, 0] > length:
                found = _OFFSET
                for place in range(last - length, last):
                    found = (found ^ _lower(data[place])) * _PRIME
                value = _look_up(words, found)
                if value > 0 and value & END_BIT:
                    role = max(role, _OTHERS_ROLE)
    return role


@njit(cache=True, nogil=True)
def role_of_names(
    data: np.ndarray, first: int, end: int, is_one: bool, words: Table, states: Table, bounds: np.ndarray
) -> int:
    """The last role, in the order of `Role`, that any of the names means.

    Args:
        data: uint8, the names between `first` and `end`, parted by spaces if there is not one only.
        bounds: [bytes, 2] int64, room for words.
    """
    role, place = 0, first
    while place < end:
        start, has_colon = place, False
        while place < end and (is_one or (data[place] != 32 and data[place] != 38)):
            has_colon |= data[place] == 58
            place += 1
        if place > start and not has_colon and not _is_state(data, start, place, states):
            role = max(role, _role_of_name(data, start, place, words, bounds))
        if place < end and data[place] == 38:  # a reference, such as of a line feed
            while data[place] != 59:
                place += 1
        place += 1
    return role


@njit(cache=True, nogil=True)
def _after_word(data: np.ndarray, place: int, end: int, word: tuple[int, ...]) -> int:
    """The byte after a word in small or capital letters and spaces after it; -1 where another word begins here."""
    for expected in word:
        if place >= end or data[place] | 32 != expected:
            return -1
        place += 1
    while place < end and data[place] == 32:
        place += 1
    return place


@njit(cache=True, nogil=True)
def _is_display_none(data: np.ndarray, first: int, end: int) -> bool:
    """Whether a style has `display: none`."""
    for place in range(first, end):
        after = _after_word(data, place, end, (100, 105, 115, 112, 108, 97, 121))
        if 0 <= after < end and data[after] == 58:
            after = _after_word(data, after, end, (58,))
            if _after_word(data, after, end, (110, 111, 110, 101)) >= 0:
                return True
    return False


@njit(cache=True, nogil=True)
def _mark(data: np.ndarray, span: np.ndarray, marks: Table) -> int:
    """What a machine-readable attribute states; 0 for one that is not there, or states nothing."""
    return max(_look_up(marks, _hash(data, span[0], span[1], _OFFSET)), 0) if span[0] >= 0 else 0


@njit(cache=True, nogil=True)
def _stated_role(data: np.ndarray, spans: np.ndarray, role: int, is_page: bool, marks: Table) -> int:
    """The role that machine-readable marks state beside the one by names; -1 where they state none."""
    which = ITEMPROP if spans[ITEMPROP, 1] > spans[ITEMPROP, 0] else PROPERTY
    stated = _mark(data, spans[which], marks) & STATED_BITS
    if stated:
        return stated
    if role != _BODY_ROLE and (
        spans[HIDDEN, 0] >= 0
        or _mark(data, spans[ARIA_HIDDEN], marks) & TRUE
        or (spans[STYLE, 0] >= 0 and _is_display_none(data, spans[STYLE, 0], spans[STYLE, 1]))
    ):
        return _HIDDEN_ROLE
    return _ASIDE_ROLE if not is_page and _mark(data, spans[ROLE], marks) & ARIA else -1


@njit(cache=True, nogil=True)
def _role(
    data: np.ndarray,
    spans: np.ndarray,
    by_tag: int,
    is_inline: bool,
    is_page: bool,
    tables: Tables,
    bounds: np.ndarray,
) -> int:
    """The role of an element: names count more than a tag, and machine-readable marks more than both.

    Args:
        spans: [NUM_ATTRIBUTES, 2] int64 bytes of attributes that may name a role; -1 for those that are not there.
        is_inline: whether classes alone decide.
    """
    role = 0
    size = spans[CLASS, 1] - spans[CLASS, 0] + (0 if is_inline else spans[ID, 1] - spans[ID, 0])
    if size <= _MAX_NAME_BYTES and not is_page:
        words, states = tables.words, tables.states
        role = role_of_names(data, spans[CLASS, 0], spans[CLASS, 1], False, words, states, bounds)
        if not is_inline:
            by_id = role_of_names(data, spans[ID, 0], spans[ID, 1], True, words, states, bounds)
            role = max(role, by_id)
    if is_inline:
        return role
    stated = _stated_role(data, spans, role, is_page, tables.marks)
    if stated >= 0:
        return stated
    return by_tag if role <= _BODY_ROLE and by_tag else role


# -- characters ----------------------------------------------------------------------------------------------


@njit(cache=True, nogil=True)
def _byte(data: np.ndarray, place: int) -> int:
    return int(np.int64(data[place]))


@njit(cache=True, nogil=True)
def _referred(data: np.ndarray, first: int, end: int) -> int:
    """The code point that a reference names, by the bytes between `&` and `;`."""
    initial = _byte(data, first)
    if initial != 35:  # lt, gt, quot, amp, apos
        if initial == 97:
            return 38 if _byte(data, first + 1) == 109 else 39
        return 60 if initial == 108 else 62 if initial == 103 else 34
    code, is_hexadecimal = 0, _byte(data, first + 1) == 120
    for place in range(first + 1 + is_hexadecimal, end):
        byte = _byte(data, place)
        digit = byte - 48 if byte < 58 else (byte & 95) - 55
        code = code * (16 if is_hexadecimal else 10) + digit
    return code


@njit(cache=True, nogil=True)
def _next(data: np.ndarray, place: int) -> tuple[int, int]:
    """The code point at a byte of a serialized text, and the byte after it; 0 for a character that XML lacks."""
    lead = _byte(data, place)
    if lead == 38:  # &
        end = place + 1
        while data[end] != 59:  # ;
            end += 1
        code = _referred(data, place + 1, end)
        return (0 if code == _REPLACED else code), end + 1
    if lead < 0x80:
        return lead, place + 1
    size = 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
    code = lead & (0xFF >> (size + 1))
    for following in range(place + 1, place + size):
        code = code << 6 | _byte(data, following) & 63
    return code, place + size


@njit(cache=True, nogil=True)
def _is_space(code: int) -> bool:
    """Like `str.isspace`."""
    if code < 0x80:
        return code <= 32 and (code == 32 or 9 <= code <= 13 or code >= 28)
    if code == 0x85 or code == 0xA0:
        return True
    return code >= 0x1680 and (
        code == 0x1680 or 0x2000 <= code <= 0x200A or code in (0x2028, 0x2029, 0x202F, 0x205F, 0x3000)
    )


@njit(cache=True, nogil=True)
def _is_wide(code: int) -> bool:
    """Whether a character of a script writes a syllable or a word."""
    return code >= 0x0E00 and (
        code <= 0x0EFF
        or 0x1000 <= code <= 0x109F
        or 0x1780 <= code <= 0x17FF
        or 0x3040 <= code <= 0x30FF
        or 0x3400 <= code <= 0x9FFF
        or 0xAC00 <= code <= 0xD7AF
    )


@njit(cache=True, nogil=True)
def _read_text(data: np.ndarray, place: int, texts: np.ndarray, count: int) -> tuple[int, int]:
    """Write the characters of a text up to the next tag; returns the byte after it and the number of characters."""
    while data[place] != 60:  # <
        lead = _byte(data, place)
        if lead < 0x80 and lead != 38:
            texts[count] = np.uint32(lead) | (SPACE if lead <= 32 else np.uint32(0))
            count, place = count + 1, place + 1
            continue
        code, place = _next(data, place)
        if code:
            bits = SPACE if _is_space(code) else WIDE if _is_wide(code) else np.uint32(0)
            texts[count] = np.uint32(code) | bits
            count += 1
    return place, count


@njit(cache=True, nogil=True)
def _is_prose(texts: np.ndarray, first: int, end: int, least: int) -> bool:
    """Whether a text has so many characters, wide ones counted twice, without white space around it."""
    size = 0
    for place in range(first, end):
        is_space = texts[place] >= SPACE
        if size or not is_space:
            size += 2 if texts[place] & WIDE else 1
        if size >= least and not is_space:
            return True
    return False


@njit(cache=True, nogil=True)
def scan_markup(
    data: np.ndarray,
    tables: Tables,
    least_prose: int,
    tokens: np.ndarray,
    opened: np.ndarray,
    texts: np.ndarray,
) -> tuple[int, int]:
    """Cut a serialized page into tokens, without those that change nothing; returns (tokens, first byte of the title,
    or less than 0 where it has none).

    Args:
        data: uint8, one well-formed element without comments.
        least_prose: characters of a run of prose.
        tokens: TOKEN, filled in; all zero.
        opened: [depth] int32, room for the open elements; -1 is returned for tokens where it does not suffice.
        texts: uint32 characters of all texts, with the bits of each; as many as there are bytes suffice.
    """
    place, count, points, depth, unseen, title = 0, 0, 0, 0, 0, -1
    values_of_open = np.empty(len(opened), np.int64)
    spans, bounds = np.empty((NUM_ATTRIBUTES, 2), np.int64), np.empty((_MAX_NAME_BYTES + 1, 2), np.int64)
    while place < len(data):
        if data[place] != 60:  # a text, which ends at the next <
            if unseen:
                while data[place] != 60:
                    place += 1
                continue
            first = points
            place, points = _read_text(data, place, texts, first)
            if points > first:
                token = tokens[count]
                token.kind, token.first, token.end = TEXT, first, points
                count += 1
                if points - first >= least_prose // 2 and _is_prose(texts, first, points, least_prose):
                    level = depth - 1
                    while level >= 0:
                        if opened[level] >= 0:
                            around = tokens[int(opened[level])]
                            if around.flags & HAS_PROSE:
                                break
                            around.flags |= HAS_PROSE
                        level -= 1
            continue
        is_end = data[place + 1] == 47
        if is_end:
            while data[place] != 62:
                place += 1
            place += 1
        else:
            first = place + 1
            place = first
            while data[place] != 62 and data[place] != 32 and data[place] != 47:
                place += 1
            tag = _hash(data, first, place, _OFFSET)
            value = _look_up(tables.tags, tag)
            value = value if value >= 0 else BLOCK | INHERITED << KIND_BITS
            flags, has_names = 0, False
            while data[place] == 32:
                if not flags:
                    flags = HAS_ATTRIBUTES
                    spans[:] = -1
                start = place + 1
                place += 2  # a name may begin with =
                while data[place] != 61:
                    place += 1
                which = _look_up(tables.attributes, _hash(data, start, place, _OFFSET))
                place += 2
                start = place
                while data[place] != 34:
                    place += 1
                if which >= 0:
                    has_names, spans[which, 0], spans[which, 1] = True, start, place
                place += 1
            if value & TITLE and title == -1:
                title = place + 1 if data[place] == 62 else -2
            if depth == len(opened):
                return -1, title
            what = value & 7
            values_of_open[depth] = value
            opened[depth] = -1
            if what != TRANSPARENT and what != REMOVED and unseen == 0:
                opened[depth] = count
                token = tokens[count]
                token.kind, token.value, token.flags, token.first, token.end = (
                    START,
                    value,
                    flags,
                    first,
                    place,
                )
                role = value >> ROLE_BITS & 7
                if has_names or role >= _DETAIL_ROLE:
                    if not flags:
                        spans[:] = -1
                    is_page = _look_up(tables.pages, tag) >= 0
                    role = _role(data, spans, role, what in (INLINE, LINK), is_page, tables, bounds)
                    key = _hash(data, spans[CLASS, 0], spans[CLASS, 1], (tag ^ np.uint64(32)) * _PRIME)
                    token.key = np.int32((key ^ key >> np.uint64(32)) & np.uint64(0x7FFFFFFF))
                token.role = role
                count += 1
            unseen += what in (REMOVED, UNSEEN)
            depth += 1
            is_end = data[place] == 47  # closed at once
            place += 1 + is_end
        if is_end:
            depth -= 1
            value = values_of_open[depth]
            what = value & 7
            unseen -= what in (REMOVED, UNSEEN)
            if opened[depth] >= 0:
                tokens[count].kind, tokens[count].value = END, value
                tokens[int(opened[depth])].other = count
                count += 1
    return count, title
