"""The compiled loops that make blocks of a page's tokens."""

from __future__ import annotations

import numpy as np
from numba import njit

# numba recompiles a function only when its own file changes; kernels here call nothing elsewhere.
TEXT, START = 0, 1
BLOCK, UNSEEN, INLINE, LINK, BREAK, CELL = 0, 3, 4, 5, 6, 7
INHERITED, KIND_BITS, SUBSTANCE = 15, 3, 1 << 11
HAS_ATTRIBUTES, HAS_PROSE = 1, 4
SPACE, WIDE = np.uint32(1 << 31), np.uint32(1 << 30)
_POINT = np.uint32((1 << 21) - 1)
KIND_OF_ITEM, KIND_OF_ROW, KIND_OF_PRE, FIRST_HEADING = 2, 3, 4, 5
NO_ELEMENT, NAMELESS = -1, -2
"""On the stack of open elements: one that ends no block, and one that only blocks can close."""
_DETAIL, _HIDDEN = 2, 5


@njit(cache=True, nogil=True)
def _put(out: np.ndarray, place: int, code: int) -> int:
    """Write a character as UTF-8; returns the byte after it."""
    if code < 0x80:
        out[place] = code
        return place + 1
    if code < 0x800:
        out[place], out[place + 1] = 0xC0 | code >> 6, 0x80 | code & 63
        return place + 2
    if code < 0x10000:
        out[place], out[place + 1], out[place + 2] = (
            0xE0 | code >> 12,
            0x80 | code >> 6 & 63,
            0x80 | code & 63,
        )
        return place + 3
    out[place], out[place + 1] = 0xF0 | code >> 18, 0x80 | code >> 12 & 63
    out[place + 2], out[place + 3] = 0x80 | code >> 6 & 63, 0x80 | code & 63
    return place + 4


# The state of the writer: an array whose places have these names. What it has written in all blocks:
BYTES, CHARACTERS, WIDE_WRITTEN = 0, 1, 2
"""Bytes and characters of text; of the open block, characters that write a syllable or a word."""
KEPT_BYTES, KEPT_CHARACTERS, KEPT_WIDE, LAST_CHARACTER = 3, 4, 5, 6
"""The same up to the open block's last character that is no white space, and that character: a block ends there."""
BLOCK_BYTE, BLOCK_CHARACTER = 7, 8
"""First byte and character of the open block."""
PIECES_READ, CHARACTERS_READ, LINE_BREAKS, ENDS_IN_BREAK = 9, 10, 11, 12
"""Counts of the open block: pieces, characters, `<br>`, and whether the last piece was one."""
LINKED, SEPARATOR_DUE = 13, 14
"""Characters in links, and the separator that is written before the next character."""
STATES = 15
_SPACE, _TAB, _LINE = 1, 2, 3
"""Separators; the last in this order wins."""
_BLOCK_COST = 20
"""Characters of plain text that a block must have to count for its element; what has neither end nor length, twice."""
_LINK_COST = 2
"""Characters of plain text that one in a link outweighs."""
_MIN_SCORE, _MIN_ROW_SCORE = -30, -10
"""Least scores of a block and of a table's row, so that a long list of links does not hide the text beside it."""


@njit(cache=True, nogil=True)
def _add_separator(state: np.ndarray, out: np.ndarray, separator: int, is_preformatted: bool) -> None:
    """A `<br>`, or the beginning of a cell."""
    state[PIECES_READ] += 1
    state[CHARACTERS_READ] += 1
    state[ENDS_IN_BREAK] = separator == _LINE
    state[LINE_BREAKS] += separator == _LINE
    if not is_preformatted:
        state[SEPARATOR_DUE] = max(state[SEPARATOR_DUE], separator)
    elif separator == _TAB or state[BYTES] > state[BLOCK_BYTE]:
        out[state[BYTES]] = 10 if separator == _LINE else 9
        state[BYTES] += 1
        state[CHARACTERS] += 1


@njit(cache=True, nogil=True)
def _add_text(
    texts: np.ndarray, first: int, end: int, state: np.ndarray, out: np.ndarray, is_preformatted: bool
) -> None:
    """Write a text, its white space as single spaces if it is not preformatted."""
    place, written, points, wide, due = (
        first,
        state[BYTES],
        state[CHARACTERS],
        state[WIDE_WRITTEN],
        state[SEPARATOR_DUE],
    )
    begin, last, kept, kept_points, kept_wide = (
        state[BLOCK_BYTE],
        state[LAST_CHARACTER],
        np.int64(-1),
        points,
        wide,
    )
    while place < end:
        bits = texts[place]
        code = int(np.int64(bits & _POINT))
        place += 1
        if bits >= SPACE:
            if not is_preformatted:
                due = max(due, _SPACE)
            elif code != 10 or written > begin:
                written = _put(out, written, code)
                points += 1
            continue
        if due:
            if written > begin:
                out[written] = 32 if due == _SPACE else 9 if due == _TAB else 10
                written += 1
                points += 1
            due = 0
        written = _put(out, written, code)
        points += 1
        wide += 1 if bits & WIDE else 0
        last, kept, kept_points, kept_wide = code, written, points, wide
    state[BYTES], state[CHARACTERS], state[WIDE_WRITTEN], state[SEPARATOR_DUE] = written, points, wide, due
    state[CHARACTERS_READ] += end - first
    if kept >= 0:
        state[KEPT_BYTES], state[KEPT_CHARACTERS], state[KEPT_WIDE], state[LAST_CHARACTER] = (
            kept,
            kept_points,
            kept_wide,
            last,
        )


@njit(cache=True, nogil=True)
def _length(texts: np.ndarray, first: int, end: int) -> int:
    """Characters of a text without white space around it."""
    while first < end and texts[first] >= SPACE:
        first += 1
    while first < end and texts[end - 1] >= SPACE:
        end -= 1
    return end - first


@njit(cache=True, nogil=True)
def _move_back(state: np.ndarray, out: np.ndarray) -> None:
    """Items of a list and rows of a table follow one another without a blank line."""
    for place in range(state[BLOCK_BYTE], state[KEPT_BYTES]):
        out[place - 1] = out[place]
    state[BLOCK_CHARACTER] -= 1
    state[KEPT_BYTES] -= 1
    state[KEPT_CHARACTERS] -= 1


@njit(cache=True, nogil=True)
def _end_block(
    state: np.ndarray,
    out: np.ndarray,
    kind: int,
    linked: int,
    sentence_ends: np.ndarray,
    blocks: np.ndarray,
    count: int,
) -> int:
    """Close the open block and add it, if it has text; returns the number of blocks."""
    points = state[KEPT_CHARACTERS] - state[BLOCK_CHARACTER]
    if points:
        if count and kind == blocks[count - 1, 2] and kind in (KIND_OF_ITEM, KIND_OF_ROW):
            _move_back(state, out)
        size = points + state[KEPT_WIDE]
        linked = min(linked * size // points if state[KEPT_WIDE] else linked, size)
        blocks[count, 0], blocks[count, 1] = state[BLOCK_CHARACTER], state[KEPT_CHARACTERS]
        blocks[count, 2], blocks[count, 3], blocks[count, 4] = kind, size, linked
        plain = size - linked
        if kind >= FIRST_HEADING:
            blocks[count, 5] = -_LINK_COST * linked
        else:
            score = plain - _LINK_COST * linked - _BLOCK_COST
            if plain < 2 * _BLOCK_COST:
                is_ended = False
                for end in sentence_ends:
                    is_ended |= state[LAST_CHARACTER] == end
                score -= 0 if is_ended else _BLOCK_COST
            blocks[count, 5] = max(score, _MIN_ROW_SCORE if kind == KIND_OF_ROW else _MIN_SCORE)
        count += 1
        for _ in range(2):
            out[state[KEPT_BYTES]] = 10
            state[KEPT_BYTES] += 1
            state[KEPT_CHARACTERS] += 1
    state[BLOCK_BYTE], state[BLOCK_CHARACTER] = state[KEPT_BYTES], state[KEPT_CHARACTERS]
    state[BYTES], state[CHARACTERS], state[WIDE_WRITTEN], state[KEPT_WIDE] = (
        state[KEPT_BYTES],
        state[KEPT_CHARACTERS],
        0,
        0,
    )
    state[PIECES_READ], state[CHARACTERS_READ], state[LINE_BREAKS], state[ENDS_IN_BREAK] = 0, 0, 0, 0
    state[LINKED], state[SEPARATOR_DUE] = 0, 0
    return count


@njit(cache=True, nogil=True)
def _read_run(
    texts: np.ndarray,
    first: int,
    end: int,
    state: np.ndarray,
    out: np.ndarray,
    kind: int,
    in_pre: bool,
    in_link: bool,
) -> None:
    """Read the texts between two tags into the open block."""
    length = _length(texts, first, end)
    if not in_pre and not length:
        if state[PIECES_READ] and not state[ENDS_IN_BREAK]:
            state[PIECES_READ] += 1
            state[CHARACTERS_READ] += 1
            state[SEPARATOR_DUE] = max(state[SEPARATOR_DUE], _SPACE)
        return
    if in_link and not in_pre:
        state[LINKED] += length
    state[PIECES_READ] += 1
    state[ENDS_IN_BREAK] = 0
    _add_text(texts, first, end, state, out, kind == KIND_OF_PRE)


@njit(cache=True, nogil=True)
def build_blocks(
    texts: np.ndarray,
    kinds: np.ndarray,
    values: np.ndarray,
    firsts: np.ndarray,
    ends: np.ndarray,
    others: np.ndarray,
    flags: np.ndarray,
    roles: np.ndarray,
    keys: np.ndarray,
    sentence_ends: np.ndarray,
    cell_characters: int,
    max_depth: int,
    out: np.ndarray,
    blocks: np.ndarray,
    elements: np.ndarray,
) -> tuple[int, int, int, int]:
    """The blocks of a page and its elements; returns (blocks, elements, bytes of text, characters that were left out
    for the role of their element), or -1 for the first where more than `max_depth` elements are inside each other.

    Args:
        texts, kinds, values, firsts, ends, others, flags: from `scan_markup`.
        roles, keys: [tokens] int8 and int32, of each START its role and the number of its tag and names.
        sentence_ends: uint32 characters that end a block of prose.
        out: uint8, room for the text as UTF-8.
        blocks: [blocks, 6] int32: first character and the one after the last, kind, size, characters in links, score.
        elements: [elements, 5] int32: number of tag and names, role, first block, the one after the last, and what
            the tag does.
    """
    depth, num_kinds, num_blocks, num_elements, links, pre, left_out, token = 0, 1, 0, 0, 0, 0, 0, 0
    opened = np.empty(max_depth + 2, np.int64)
    block_kinds = np.zeros(max_depth + 3, np.int64)
    state = np.zeros(STATES, np.int64)
    while token < len(kinds):
        value, start = int(values[token]), token
        what, own = value & 7, value >> KIND_BITS & 15
        kind = block_kinds[num_kinds - 1]
        row_kind = 0 if kind == KIND_OF_ROW else kind
        token += 1
        if kinds[start] == START:
            element, role = NO_ELEMENT, np.int64(roles[start])
            if what in (INLINE, LINK):
                links += what == LINK
                if role == _HIDDEN:
                    token = np.int64(others[start])
                elif role >= _DETAIL and state[PIECES_READ] == 0:
                    element = num_elements
            elif what == BREAK:
                if state[ENDS_IN_BREAK] and not pre:  # two in a row end a paragraph
                    num_blocks = _end_block(
                        state, out, row_kind, state[LINKED], sentence_ends, blocks, num_blocks
                    )
                elif state[PIECES_READ]:
                    _add_separator(state, out, _LINE, kind == KIND_OF_PRE)
            elif what == UNSEEN:
                token = np.int64(others[start])
            elif what == CELL:
                if state[LINE_BREAKS]:  # cells of several lines are columns of a page
                    num_blocks = _end_block(
                        state, out, row_kind, state[LINKED], sentence_ends, blocks, num_blocks
                    )
                elif state[PIECES_READ]:
                    _add_separator(state, out, _TAB, kind == KIND_OF_PRE)
                role, element = 0, num_elements
            else:
                if state[PIECES_READ]:
                    num_blocks = _end_block(
                        state, out, kind, state[LINKED], sentence_ends, blocks, num_blocks
                    )
                until = token
                while kinds[until] == TEXT:
                    until += 1
                first = int(firsts[token]) if until > token else 0
                end = int(ends[until - 1]) if until > token else 0
                is_leaf = kinds[until] != START
                is_named = not is_leaf or (flags[start] & HAS_ATTRIBUTES) != 0
                is_hidden = (
                    is_named and role >= _DETAIL and not flags[start] & HAS_PROSE and not value & SUBSTANCE
                )
                if is_hidden or (is_leaf and _length(texts, first, end) == 0):
                    opened[depth] = NO_ELEMENT
                    depth += 1
                    token = np.int64(others[start])
                    for number in range(until, token):
                        left_out += ends[number] - firsts[number] if kinds[number] == TEXT else 0
                    continue
                if is_named:
                    element = num_elements
                is_pre, kind = own == KIND_OF_PRE, kind if own == INHERITED else own
                if is_leaf and not is_pre:
                    linked = end - first if links else 0
                    _add_text(texts, first, end, state, out, kind == KIND_OF_PRE)
                    before = num_blocks
                    num_blocks = _end_block(state, out, kind, linked, sentence_ends, blocks, num_blocks)
                    if is_named:
                        elements[num_elements, 0], elements[num_elements, 1] = keys[start], role
                        elements[num_elements, 2], elements[num_elements, 3] = before, num_blocks
                        elements[num_elements, 4] = value
                        num_elements += 1
                    element, token = NO_ELEMENT, until
                else:
                    element = element if is_named else NAMELESS
                    pre += is_pre
            if element >= 0:
                elements[element, 0], elements[element, 1] = keys[start], role
                elements[element, 2], elements[element, 4] = num_blocks, value
                num_elements += 1
            if element != NO_ELEMENT:
                block_kinds[num_kinds] = kind
                num_kinds += 1
            opened[depth] = element
            depth += 1
            if depth > max_depth:
                return -1, 0, 0, 0
        else:
            depth -= 1
            element = opened[depth]
            if element != NO_ELEMENT:
                if what != CELL:
                    if state[PIECES_READ]:
                        num_blocks = _end_block(
                            state, out, kind, state[LINKED], sentence_ends, blocks, num_blocks
                        )
                elif state[CHARACTERS_READ] > cell_characters:
                    num_blocks = _end_block(
                        state, out, row_kind, state[LINKED], sentence_ends, blocks, num_blocks
                    )
                if element >= 0:
                    elements[element, 3] = num_blocks
                num_kinds -= 1
                pre -= what == BLOCK and own == KIND_OF_PRE
            links -= what == LINK
        kind = block_kinds[num_kinds - 1]
        until = token
        while until < len(kinds) and kinds[until] == TEXT:
            until += 1
        if until > token:
            _read_run(texts, firsts[token], ends[until - 1], state, out, kind, pre > 0, links > 0)
            token = until
    kind = block_kinds[num_kinds - 1]
    num_blocks = _end_block(state, out, kind, state[LINKED], sentence_ends, blocks, num_blocks)
    return num_blocks, num_elements, state[BYTES], left_out
