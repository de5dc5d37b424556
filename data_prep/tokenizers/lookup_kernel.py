"""The compiled loops of `word_cache.py`; calling nothing of other files, they are never older than they are."""

from __future__ import annotations

from typing import Any

import numpy as np

from cluster.compiled_loop import compiled_loop

INSIDE, WHITE, ALONE = 1, 2, 3
"""Kinds of characters: part of a word, white space, a word by itself; 0 for characters not seen before."""
KIND = 3
"""The bits of a character's properties that tell its kind."""
APART, CLUSTERS, JOINS_BEFORE, JOINS_BEHIND, LOOSE, LONG = 4, 8, 16, 32, 64, 128
"""Other bits: its word cannot be normalised character by character; nor can it where the character and the one before
it have fewer than `SHORT_CLUSTER` bytes; it is one grapheme with a space before it, or behind it; it becomes nothing,
or is a mark that may change places; it becomes more than one character, or one with such a mark."""
SHORT_CLUSTER = 6
_AT_RISK = APART | CLUSTERS | LOOSE
BY_REFERENCE, ODD = 1, 2
"""Flags of words: only the reference knows their ids; these depend on what is beside the word."""
UNKNOWN_END = 0xFFFFFFFF
"""The end of a token of a word of which the reference has only told the ids."""
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_S29, _S32, _LOW = np.uint64(29), np.uint64(32), np.uint64(0xFFFFFFFF)
_ONE, _NONE = np.uint64(1), np.uint64(0)
_REPLACEMENT = 0xFFFD
_BLOCK = np.uint64(32)
"""Bytes that are looked at together."""


@compiled_loop
def _character(data: np.ndarray, place: Any, stop: Any) -> tuple:
    """(code point, bytes) of the character at `place`; no byte from `stop` on is read."""
    first = np.int64(data[place])
    if first < 0x80:
        return first, 1
    size = 2 if first < 0xE0 else 3 if first < 0xF0 else 4
    if place + size > stop:
        return _REPLACEMENT, stop - place
    code = first & (0x7F >> size)
    for k in range(1, size):
        code = code << 6 | np.int64(data[place + k]) & 0x3F
    return min(code, 0x10FFFF), size


@compiled_loop
def unknown_characters(data: np.ndarray, properties: np.ndarray, found: np.ndarray) -> int:
    """Fill in the code points in `data` whose properties are 0, and set these to `INSIDE`; returns how many.

    `found` has room for all of them: `len(data)` is enough.
    """
    place, count, stop = 0, 0, len(data)
    while place < stop:
        if data[place] < 0x80:
            place += 1
            continue
        code, size = _character(data, place, stop)
        if properties[code] == 0:
            properties[code] = INSIDE
            found[count] = code
            count += 1
        place += size
    return count


@compiled_loop
def _skip_ascii(data: np.ndarray, place: Any, stop: Any) -> Any:
    """Behind the blocks of ASCII that begin at `place`, which processors tell by few instructions."""
    first, end = (
        np.uint64(place),
        np.uint64(stop),
    )  # as compilers do not ask whether unsigned indices are negative
    while first + _BLOCK <= end:
        joined = np.uint8(0)
        for k in range(_BLOCK):
            joined |= data[first + k]
        if joined >= 0x80:
            break
        first += _BLOCK
    return np.int64(first)


@compiled_loop
def find_others(data: np.ndarray, bounds: np.ndarray, known: np.ndarray, found: np.ndarray) -> None:
    """Mark the texts with characters that are not `known`, by code point: uint8 UTF-8, [texts + 1] int64; bool, [texts]
    bool."""
    for text in range(len(bounds) - 1):
        place, stop = bounds[text], bounds[text + 1]
        while place < stop and not found[text]:
            place = _skip_ascii(data, place, stop)
            block = min(place + np.int64(_BLOCK), stop)
            while place < block:
                if data[place] < 0x80:
                    place += 1
                    continue
                code, size = _character(data, place, stop)
                if code >= len(known) or not known[code]:
                    found[text] = True
                    break
                place += size


@compiled_loop
def find_starts(
    ids: np.ndarray,
    offsets: np.ndarray,
    token_bytes: np.ndarray,
    cuts: np.ndarray,
    cut_offsets: np.ndarray,
    starts: np.ndarray,
    start_offsets: np.ndarray,
) -> int:
    """Fill in the first tokens of sentences: the first one of a text, and those that reach beyond a place where it is
    cut; each once. Returns how many they are.

    Args:
        ids, offsets: of all texts: the tokens of text `t` are those from `offsets[t]` to before `offsets[t + 1]`.
        token_bytes: [ids] int32 bytes of text that a token stands for.
        cuts, cut_offsets: int64 bytes of their text, ascending; the cuts of text `t` are those from `cut_offsets[t]`.
        starts: [texts + cuts] int32, filled in, in the order of the texts.
        start_offsets: [texts + 1] int64, filled in: where the sentences of each text begin in `starts`.
    """
    count = 0
    for text in range(len(offsets) - 1):
        start_offsets[text] = count
        first, stop = offsets[text], offsets[text + 1]
        if first == stop:
            continue
        starts[count] = 0
        count += 1
        cut, last_cut, token, end = cut_offsets[text], cut_offsets[text + 1], first, np.int64(0)
        while cut < last_cut and token < stop:
            end += token_bytes[ids[token]]
            if cuts[cut] < end:
                if token > first:
                    starts[count] = token - first
                    count += 1
                while cut < last_cut and cuts[cut] < end:
                    cut += 1
            token += 1
    start_offsets[len(offsets) - 1] = count
    return count


@compiled_loop
def _number_of(
    data: np.ndarray,
    start: Any,
    stop: Any,
    tag: np.uint64,
    slots: np.ndarray,
    key_offsets: np.ndarray,
    keys: np.ndarray,
    count: Any,
) -> tuple:
    """The number (int64) of a word, and whether it is new; -1 where there is no room for a new one."""
    mask = np.uint64(len(slots) - 1)
    slot = tag & mask
    size = stop - start
    while slots[slot] != _NONE:
        if slots[slot] >> _S32 == tag:
            number = np.int64(slots[slot] & _LOW) - 1
            first = key_offsets[number]
            same = key_offsets[number + 1] - first == size
            k = 0
            while same and k < size:
                same = keys[first + k] == data[start + k]
                k += 1
            if same:
                return number, False
        slot = (slot + _ONE) & mask
    first = key_offsets[count]
    if count + 1 >= len(key_offsets) or first + size > len(keys):
        return -1, True
    slots[slot] = tag << _S32 | np.uint64(count + 1)
    keys[first : first + size] = data[start:stop]
    key_offsets[count + 1] = first + size
    return count, True


@compiled_loop
def find_words(
    data: np.ndarray,
    bounds: np.ndarray,
    properties: np.ndarray,
    slots: np.ndarray,
    key_offsets: np.ndarray,
    keys: np.ndarray,
    flags: np.ndarray,
    numbers: np.ndarray,
    starts: np.ndarray,
    ends: np.ndarray,
    first_words: np.ndarray,
    begins_loose: np.ndarray,
    state: np.ndarray,
) -> bool:
    """Cut texts into words and look these up; False where the table is full, to be called again with more room.

    Args:
        data: uint8 UTF-8 of all texts.
        bounds: [texts + 1] int64: text `t` is `data[bounds[t] : bounds[t + 1]]`.
        properties: [code points] uint8.
        slots: uint64, a power of two: tag and number + 1 of each word of the table; 0 where there is none.
        key_offsets, keys: int64, uint8: the bytes of word `n` are `keys[key_offsets[n] : key_offsets[n + 1]]`.
        flags: uint8 of each word of the table.
        numbers, starts, ends: [bytes] int32, filled in for every word of the texts.
        first_words: [texts + 1] int64, filled in: the first word of each text.
        begins_loose: [texts] bool, filled in: the first character of each text is `LOOSE`.
        state: int64 (text, place, words found, words in the table), at first (0, `bounds[0]`, 0, words in the table).
    """
    text, place, found, count = np.int64(state[0]), np.int64(state[1]), np.int64(state[2]), np.int64(state[3])
    while text < len(bounds) - 1:
        stop = bounds[text + 1]
        if place == bounds[text]:
            first_words[text] = found
            code = _character(data, place, stop)[0] if place < stop else 0
            begins_loose[text] = properties[code] & LOOSE != 0 and place < stop
        while place < stop:
            code, size = _character(data, place, stop)
            first = last = np.int64(properties[code])
            if first & KIND == WHITE:
                place += size
                continue
            start = place
            place += size
            value = (np.uint64(code) ^ _GOLDEN) * _GOLDEN
            by_reference = first & (APART | LOOSE) != 0
            while first & KIND == INSIDE and place < stop:
                before = size
                code, size = _character(data, place, stop)
                kind = np.int64(properties[code])
                if kind & KIND != INSIDE:
                    break
                value = (value ^ (value >> _S29) ^ np.uint64(code)) * _GOLDEN
                if kind & _AT_RISK:
                    by_reference |= kind & APART != 0
                    by_reference |= kind & CLUSTERS != 0 and before + size < SHORT_CLUSTER
                    # Hugging Face tokenizers shifts offsets then.
                    by_reference |= kind & LOOSE != 0 and last & LONG != 0
                last = kind
                place += size
            value = (value ^ (value >> _S29)) * _GOLDEN
            number, new = _number_of(data, start, place, value >> _S32, slots, key_offsets, keys, count)
            if number < 0:
                state[0], state[1], state[2], state[3] = text, start, found, count
                return False
            if new:
                count += 1
                odd = first & JOINS_BEFORE != 0 or last & JOINS_BEHIND != 0
                flags[number] = BY_REFERENCE * by_reference | ODD * odd
            numbers[found], starts[found], ends[found] = number, start, place
            found += 1
        text += 1
    first_words[text] = found
    state[0], state[1], state[2], state[3] = text, place, found, count
    return True


@compiled_loop
def spread_slots(slots: np.ndarray, wider: np.ndarray) -> None:
    """Put the contents of a table's slots into more of them, which are 0."""
    mask = np.uint64(len(wider) - 1)
    for filled in slots:
        if filled != _NONE:
            slot = (filled >> _S32) & mask
            while wider[slot] != _NONE:
                slot = (slot + _ONE) & mask
            wider[slot] = filled


@compiled_loop
def count_tokens(numbers: np.ndarray, token_offsets: np.ndarray, begins: np.ndarray) -> int:
    """Fill in [words + 1] int64 the first token of each word; returns the number of tokens."""
    total = np.int64(0)
    for k in range(len(numbers)):
        begins[k] = total
        total += token_offsets[numbers[k] + 1] - token_offsets[numbers[k]]
    begins[len(numbers)] = total
    return int(total)


@compiled_loop
def gather_ids(numbers: np.ndarray, token_offsets: np.ndarray, tokens: np.ndarray, ids: np.ndarray) -> None:
    """Fill in the ids (uint32) of words, one behind the other."""
    place = 0
    for k in range(len(numbers)):
        for token in range(token_offsets[numbers[k]], token_offsets[numbers[k] + 1]):
            ids[place] = tokens[token, 0]
            place += 1


@compiled_loop
def tokens_before(
    numbers: np.ndarray,
    inside: np.ndarray,
    token_offsets: np.ndarray,
    tokens: np.ndarray,
    counts: np.ndarray,
) -> None:
    """Fill in how many tokens of a word end at or before a place inside it; -1 where no ends are known.

    Args:
        numbers, inside: int64 the word of each place, and the bytes from its start to the place.
        token_offsets, tokens: those of `word_table.WordTable`.
        counts: [places] int64.
    """
    for k in range(len(numbers)):
        first, stop = token_offsets[numbers[k]], token_offsets[numbers[k] + 1]
        token = first
        while token < stop and np.int64(tokens[token, 1]) <= inside[k]:
            token += 1
        unknown = token < stop and tokens[token, 1] == UNKNOWN_END
        counts[k] = -1 if unknown else token - first
