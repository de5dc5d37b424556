"""The compiled loops that find the roles of a page's elements.

numba recompiles a function only when its own file changes; kernels here call nothing elsewhere.
"""

from __future__ import annotations

import numpy as np
from numba import njit

_OFFSET, _PRIME = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)
"""Constants of FNV-1a, the hash of names."""
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
_BODY_ROLE, _ASIDE_ROLE, _OTHERS_ROLE, _HIDDEN_ROLE = 1, 3, 4, 5


@njit(cache=True, nogil=True)
def look_up(names: np.ndarray, values: np.ndarray, name: np.uint64) -> int:
    """The value of a name's hash in an open table of a power of two, without the lowest bit; -1 for others."""
    place = np.int64(name) & (len(names) - 1)
    while values[place]:
        if names[place] == name:
            return int(np.int64(values[place]) >> 1)
        place = (place + 1) & (len(names) - 1)
    return -1


@njit(cache=True, nogil=True)
def _hash(data: np.ndarray, first: int, end: int, found: np.uint64) -> np.uint64:
    for place in range(first, end):
        found = (found ^ np.uint64(data[place])) * _PRIME
    return found


@njit(cache=True, nogil=True)
def _is_state(data: np.ndarray, first: int, end: int, states: np.ndarray, state_values: np.ndarray) -> bool:
    """Whether a name means a state or a subject."""
    found = _OFFSET
    for place in range(first, min(end, first + 10)):
        byte = data[place]
        if (byte == 45 or byte == 95) and look_up(states, state_values, found) >= 0:  # - or _
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
def _role_of_name(
    data: np.ndarray, first: int, end: int, words: np.ndarray, word_values: np.ndarray, bounds: np.ndarray
) -> int:
    """The role that the words of a name mean; they may be written together."""
    role, count = 0, _split(data, first, end, bounds)
    for number in range(count):
        found, has_start = _OFFSET, False
        for following in range(number, min(count, number + _LONGEST_NAME)):
            start = bounds[following, 0]
            for place in range(start, bounds[following, 1]):
                byte = data[place]
                found = (found ^ np.uint64(byte + 32 if 65 <= byte <= 90 else byte)) * _PRIME
                length = place + 1 - start
                if following == number and _SHORTEST_START <= length <= _LONGEST_START:
                    value = look_up(words, word_values, found)
                    if value > 0 and value >> START_BIT & NAME_BITS:
                        role, has_start = max(role, value >> START_BIT & NAME_BITS), True
            value = look_up(words, word_values, found)
            if value > 0:
                role = max(role, value & NAME_BITS)
        last = bounds[number, 1]
        for length in (7, 8):
            if not has_start and last - bounds[number, 0] > length:
                found = _OFFSET
                for place in range(last - length, last):
                    byte = data[place]
                    found = (found ^ np.uint64(byte + 32 if 65 <= byte <= 90 else byte)) * _PRIME
                value = look_up(words, word_values, found)
                if value > 0 and value & END_BIT:
                    role = max(role, _OTHERS_ROLE)
    return role


@njit(cache=True, nogil=True)
def role_of_names(
    data: np.ndarray,
    first: int,
    end: int,
    is_one: bool,
    words: np.ndarray,
    word_values: np.ndarray,
    states: np.ndarray,
    state_values: np.ndarray,
    bounds: np.ndarray,
) -> int:
    """The last role, in the order of `Role`, that any of the names means.

    Args:
        data: uint8, the names between `first` and `end`, parted by spaces if there is not one only.
        words, states: uint64 open tables of hashes, with their values.
        bounds: [bytes, 2] int64, room for words.
    """
    role, place = 0, first
    while place < end:
        start, has_colon = place, False
        while place < end and (is_one or (data[place] != 32 and data[place] != 38)):
            has_colon |= data[place] == 58
            place += 1
        if place > start and not has_colon and not _is_state(data, start, place, states, state_values):
            role = max(role, _role_of_name(data, start, place, words, word_values, bounds))
        if place < end and data[place] == 38:  # a reference, such as of a line feed
            while data[place] != 59:
                place += 1
        place += 1
    return role


@njit(cache=True, nogil=True)
def _is_display_none(data: np.ndarray, first: int, end: int) -> bool:
    """Whether a style has `display: none`."""
    place = first
    while place < end - 11:
        matched = 0
        for expected in (100, 105, 115, 112, 108, 97, 121):  # display
            if data[place + matched] | 32 != expected:
                break
            matched += 1
        place += 1
        if matched < 7:
            continue
        after = place + 6
        while after < end and data[after] == 32:
            after += 1
        if after < end and data[after] == 58:
            after += 1
            while after < end and data[after] == 32:
                after += 1
            if (
                after + 4 <= end
                and data[after] | 32 == 110
                and data[after + 1] | 32 == 111
                and data[after + 2] | 32 == 110
                and data[after + 3] | 32 == 101
            ):
                return True
    return False


@njit(cache=True, nogil=True)
def _read_attributes(
    data: np.ndarray,
    place: int,
    end: int,
    attributes: np.ndarray,
    attribute_values: np.ndarray,
    spans: np.ndarray,
) -> None:
    """Fill in the bytes of attributes that may name a role, [NUM_ATTRIBUTES, 2]; -1 for those that are not there."""
    spans[:] = -1
    while place < end:
        place += 1  # after the space
        name = (_OFFSET ^ np.uint64(data[place])) * _PRIME
        place += 1
        while data[place] != 61:
            name = (name ^ np.uint64(data[place])) * _PRIME
            place += 1
        place += 2
        first = place
        while data[place] != 34:
            place += 1
        which = look_up(attributes, attribute_values, name)
        if which >= 0:
            spans[which, 0], spans[which, 1] = first, place
        place += 1


@njit(cache=True, nogil=True)
def _stated_role(
    data: np.ndarray,
    spans: np.ndarray,
    role: int,
    is_landmark: bool,
    marks: np.ndarray,
    mark_values: np.ndarray,
) -> int:
    """The role that machine-readable marks state, or the one by names."""
    which = ITEMPROP if spans[ITEMPROP, 1] > spans[ITEMPROP, 0] else PROPERTY
    if spans[which, 0] >= 0:
        value = look_up(marks, mark_values, _hash(data, spans[which, 0], spans[which, 1], _OFFSET))
        if value > 0 and value & STATED_BITS:
            return value & STATED_BITS
    if role != _BODY_ROLE:
        if spans[HIDDEN, 0] >= 0:
            return _HIDDEN_ROLE
        if spans[ARIA_HIDDEN, 0] >= 0:
            value = look_up(
                marks, mark_values, _hash(data, spans[ARIA_HIDDEN, 0], spans[ARIA_HIDDEN, 1], _OFFSET)
            )
            if value > 0 and value & TRUE:
                return _HIDDEN_ROLE
        if spans[STYLE, 0] >= 0 and _is_display_none(data, spans[STYLE, 0], spans[STYLE, 1]):
            return _HIDDEN_ROLE
    if spans[ROLE, 0] >= 0 and not is_landmark:
        value = look_up(marks, mark_values, _hash(data, spans[ROLE, 0], spans[ROLE, 1], _OFFSET))
        if value > 0 and value & ARIA:
            return _ASIDE_ROLE
    return -1


@njit(cache=True, nogil=True)
def fill_roles(
    data: np.ndarray,
    tokens: np.ndarray,
    firsts: np.ndarray,
    ends: np.ndarray,
    is_inline: np.ndarray,
    pages: np.ndarray,
    page_values: np.ndarray,
    attributes: np.ndarray,
    attribute_values: np.ndarray,
    marks: np.ndarray,
    mark_values: np.ndarray,
    words: np.ndarray,
    word_values: np.ndarray,
    states: np.ndarray,
    state_values: np.ndarray,
    roles: np.ndarray,
    keys: np.ndarray,
) -> None:
    """Fill in the roles of elements, and hashes of their tags and classes.

    Args:
        data: uint8, a serialized page.
        tokens: [elements] the numbers of those that may have a role.
        firsts, ends, is_inline: [tokens] the bytes of a tag's contents; whether classes alone decide its role.
        pages, attributes, marks, words, states: uint64 open tables of hashes, with their int32 values.
        roles: [tokens] int8, by the tags; names count more than a tag, and machine-readable marks more than both.
        keys: [tokens] int32.
    """
    spans = np.empty((NUM_ATTRIBUTES, 2), np.int64)
    bounds = np.empty((_MAX_NAME_BYTES + 1, 2), np.int64)
    for token in tokens:
        place, end = int(firsts[token]), int(ends[token])
        key = _OFFSET
        while place < end and data[place] != 32:
            key = (key ^ np.uint64(data[place])) * _PRIME
            place += 1
        is_page = look_up(pages, page_values, key) >= 0
        _read_attributes(data, place, end, attributes, attribute_values, spans)
        key = _hash(data, spans[CLASS, 0], spans[CLASS, 1], (key ^ np.uint64(32)) * _PRIME)
        keys[token] = np.int32((key ^ key >> np.uint64(32)) & np.uint64(0x7FFFFFFF))
        by_tag, role = np.int64(roles[token]), 0
        size = spans[CLASS, 1] - spans[CLASS, 0] + (0 if is_inline[token] else spans[ID, 1] - spans[ID, 0])
        if size <= _MAX_NAME_BYTES and not is_page:
            role = role_of_names(
                data,
                spans[CLASS, 0],
                spans[CLASS, 1],
                False,
                words,
                word_values,
                states,
                state_values,
                bounds,
            )
            if not is_inline[token]:
                by_id = role_of_names(
                    data, spans[ID, 0], spans[ID, 1], True, words, word_values, states, state_values, bounds
                )
                role = max(role, by_id)
        if not is_inline[token]:
            stated = _stated_role(data, spans, role, is_page, marks, mark_values)
            if stated >= 0:
                role = stated
            elif role <= _BODY_ROLE and by_tag:
                role = by_tag
        roles[token] = role
