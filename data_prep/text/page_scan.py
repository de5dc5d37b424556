"""The compiled loops that cut an HTML page into tokens: texts, and the tags that change something."""

from __future__ import annotations

import numpy as np
from numba import njit

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
HAS_ATTRIBUTES, HAS_NAMES, HAS_PROSE = 1, 2, 4
"""Flags of a token: attributes at all, a role or attributes that may name one, a run of prose within."""
SPACE, WIDE = np.uint32(1 << 31), np.uint32(1 << 30)
"""Bits of a character beside its code point: it is white space; it writes a syllable or a word."""
_DETAIL = 2
_OFFSET, _PRIME = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)
"""Constants of FNV-1a, the hash of names."""
_REPLACED = 0xFFFD


@njit(cache=True, nogil=True)
def _look_up(names: np.ndarray, values: np.ndarray, name: np.uint64) -> int:
    """The value of a hash in an open table of a power of two, without its lowest bit; -1 for others."""
    place = np.int64(name) & (len(names) - 1)
    while values[place]:
        if names[place] == name:
            return int(np.int64(values[place]) >> 1)
        place = (place + 1) & (len(names) - 1)
    return -1


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
    tags: np.ndarray,
    tag_values: np.ndarray,
    attributes: np.ndarray,
    attribute_values: np.ndarray,
    least_prose: int,
    kinds: np.ndarray,
    values: np.ndarray,
    firsts: np.ndarray,
    ends: np.ndarray,
    others: np.ndarray,
    flags: np.ndarray,
    roles: np.ndarray,
    opened: np.ndarray,
    texts: np.ndarray,
) -> tuple[int, int]:
    """Cut a serialized page into tokens, without those that change nothing; returns (tokens, first byte of the title,
    or less than 0 where it has none).

    Args:
        data: uint8, one well-formed element without comments.
        tags: uint64 hashes of tags in an open table, `tag_values` int32 what they do, plus one bit.
        attributes: uint64 hashes of the attributes that may name a role.
        least_prose: characters of a run of prose.
        kinds: [tokens] int8 TEXT, START or END.
        values: [tokens] int32, what the tag does.
        firsts, ends: [tokens] int32, the characters of a text, or the bytes of a tag's contents.
        others: [tokens] int32, of a START its END.
        flags: [tokens] int8.
        roles: [tokens] int8, of each START by its tag.
        opened: [depth] int32, room for the open elements; -1 is returned for tokens where it does not suffice.
        texts: uint32 characters of all texts, with the bits of each; as many as there are bytes suffice.
    """
    place, count, points, depth, unseen, title = 0, 0, 0, 0, 0, -1
    values_of_open = np.empty(len(opened), np.int64)
    while place < len(data):
        if data[place] != 60:  # a text, which ends at the next <
            if unseen:
                while data[place] != 60:
                    place += 1
                continue
            first = points
            place, points = _read_text(data, place, texts, first)
            if points > first:
                kinds[count], firsts[count], ends[count] = TEXT, first, points
                count += 1
                if points - first >= least_prose // 2 and _is_prose(texts, first, points, least_prose):
                    level = depth - 1
                    while level >= 0:
                        if opened[level] >= 0:
                            if flags[opened[level]] & HAS_PROSE:
                                break
                            flags[opened[level]] |= HAS_PROSE
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
            name = _OFFSET
            while data[place] != 62 and data[place] != 32 and data[place] != 47:
                name = (name ^ np.uint64(data[place])) * _PRIME
                place += 1
            value = _look_up(tags, tag_values, name)
            value = value if value >= 0 else BLOCK | INHERITED << KIND_BITS
            flag = 0
            while data[place] == 32:
                flag |= HAS_ATTRIBUTES
                place += 1
                name = (_OFFSET ^ np.uint64(data[place])) * _PRIME
                place += 1
                while data[place] != 61:
                    name = (name ^ np.uint64(data[place])) * _PRIME
                    place += 1
                if _look_up(attributes, attribute_values, name) >= 0:
                    flag |= HAS_NAMES
                place += 2
                while data[place] != 34:
                    place += 1
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
                roles[count] = value >> ROLE_BITS & 7
                if roles[count] >= _DETAIL:
                    flag |= HAS_NAMES
                kinds[count], values[count], flags[count] = START, value, flag
                firsts[count], ends[count] = first, place
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
                kinds[count], values[count] = END, value
                others[opened[depth]] = count
                count += 1
    return count, title


@njit(cache=True, nogil=True)
def has_many_attributes(data: np.ndarray, limit: int) -> bool:
    """Whether what may be a tag of an HTML page, a uint8 array, has so many attributes."""
    size, last_quotes = len(data), np.array([len(data), len(data)])
    for start in range(size - 1):
        if data[start] != 60 or not 97 <= data[start + 1] | 32 <= 122:
            continue
        place, count = start + 2, 0
        while place < size and data[place] > 32 and data[place] != 47 and data[place] != 62:
            place += 1
        while count < limit:
            while place < size and (data[place] <= 32 or data[place] == 47):
                place += 1
            first = place
            while place < size and data[place] > 32 and not (data[place] == 47 or 61 <= data[place] <= 62):
                place += 1
            if place == first:
                break
            count += 1
            value = place
            while value < size and data[value] <= 32:
                value += 1
            if value == size or data[value] != 61:
                continue
            value += 1
            while value < size and data[value] <= 32:
                value += 1
            if value < size and (data[value] == 34 or data[value] == 39):
                quote, which = data[value], np.int64(data[value] == 39)
                value += 1
                first = value
                while value < last_quotes[which] and data[value] != quote:
                    value += 1
                if value >= last_quotes[which]:  # from here on there is no such quotation mark
                    last_quotes[which] = min(last_quotes[which], first)
                    continue
                place = value + 1
            else:
                while value < size and data[value] > 32 and data[value] not in (62, 34, 39):
                    value += 1
                place = max(value, place)
        if count >= limit:
            return True
    return False
