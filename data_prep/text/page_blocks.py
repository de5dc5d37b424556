"""An HTML page as blocks of text (paragraphs, headings, list items, table rows) and the elements that hold them.

A compiled loop makes them of a page's tokens. numba recompiles a loop only when its own file changes, so these call
nothing of other files.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit

from data_prep.text import UnreadableError, names
from data_prep.text.page_roles import Role
from data_prep.text.page_scan import KINDS, MAX_DEPTH, read_tokens

# -- the compiled loop ---------------------------------------------------------------------------------------

# As in `page_scan.py`.
TEXT, START = 0, 1
BLOCK, UNSEEN, INLINE, LINK, BREAK, CELL = 0, 3, 4, 5, 6, 7
INHERITED, KIND_BITS, SUBSTANCE = 15, 3, 1 << 11
HAS_ATTRIBUTES, HAS_PROSE = 1, 4
SPACE, WIDE = np.uint32(1 << 31), np.uint32(1 << 30)

BLOCK_RECORD = np.dtype(
    [(name, np.int32) for name in ("first", "end", "kind", "size", "linked", "score")], align=True
)
"""A block: its first character and the one after the last, and the rest as `Block` has it."""
ELEMENT_RECORD = np.dtype([(name, np.int32) for name in ("key", "role", "first", "end", "value")], align=True)
"""An element: hash of its tag and classes, role, first block and the one after the last, and the bits of its tag."""
_WRITTEN = ("written", "wide", "kept", "kept_wide", "last")
"""Characters written in all blocks, and of the open block those that write a syllable or a word; the same up to the
open block's last character that is no white space, and that character: a block ends there."""
_OPEN = ("begin", "pieces", "characters", "line_breaks", "ends_in_break", "linked", "separator")
"""The open block: its first character; the pieces and characters that were read for it; its `<br>`, and whether the
last piece was one; characters in links; the separator that is written before the next character. And how many blocks
there are."""
_STATE = np.dtype([(name, np.int64) for name in (*_WRITTEN, *_OPEN, "num_blocks")], align=True)
"""The state of the writer."""
_POINT = np.uint32((1 << 21) - 1)
KIND_OF_ITEM, KIND_OF_ROW, KIND_OF_PRE, FIRST_HEADING = 2, 3, 4, 5
NO_ELEMENT, NAMELESS = -1, -2
"""On the stack of open elements: one that ends no block, and one that only blocks can close."""
_DETAIL, _HIDDEN = 2, 5
_SPACE, _TAB, _LINE = 1, 2, 3
"""Separators; the last in this order wins."""
_BLOCK_COST = 20
"""Characters of plain text that a block must have to count for its element; what has neither end nor length, twice."""
_LINK_COST = 2
"""Characters of plain text that one in a link outweighs."""
_MIN_SCORE, _MIN_ROW_SCORE = -30, -10
"""Least scores of a block and of a table's row, so that a long list of links does not hide the text beside it."""


@njit(cache=True, nogil=True)
def _add_separator(state: np.record, out: np.ndarray, separator: int, is_preformatted: bool) -> None:
    """A `<br>`, or the beginning of a cell."""
    state.pieces += 1
    state.characters += 1
    state.ends_in_break = separator == _LINE
    state.line_breaks += separator == _LINE
    if not is_preformatted:
        state.separator = max(state.separator, separator)
    elif separator == _TAB or state.written > state.begin:
        out[state.written] = 10 if separator == _LINE else 9
        state.written += 1


@njit(cache=True, nogil=True)
def _add_text(
    texts: np.ndarray, first: int, end: int, state: np.record, out: np.ndarray, is_preformatted: bool
) -> None:
    """Write a text, its white space as single spaces if it is not preformatted."""
    written, wide, due, begin = state.written, state.wide, state.separator, state.begin
    last, kept, kept_wide = state.last, np.int64(-1), wide
    for place in range(first, end):
        bits = texts[place]
        point = bits & _POINT
        if bits >= SPACE:
            if not is_preformatted:
                due = max(due, _SPACE)
            elif point != 10 or written > begin:
                out[written] = point
                written += 1
            continue
        if due:
            if written > begin:
                out[written] = 32 if due == _SPACE else 9 if due == _TAB else 10
                written += 1
            due = 0
        out[written] = point
        written += 1
        wide += 1 if bits & WIDE else 0
        last, kept, kept_wide = np.int64(point), written, wide
    state.written, state.wide, state.separator = written, wide, due
    state.characters += end - first
    if kept >= 0:
        state.kept, state.kept_wide, state.last = kept, kept_wide, last


@njit(cache=True, nogil=True)
def _length(texts: np.ndarray, first: int, end: int) -> int:
    """Characters of a text without white space around it."""
    while first < end and texts[first] >= SPACE:
        first += 1
    while first < end and texts[end - 1] >= SPACE:
        end -= 1
    return end - first


@njit(cache=True, nogil=True)
def _end_block(
    state: np.record, out: np.ndarray, kind: int, sentence_ends: np.ndarray, blocks: np.ndarray
) -> None:
    """Close the open block and add it, if it has text."""
    points = state.kept - state.begin
    if points:
        count = state.num_blocks
        previous: Any = blocks[count - 1]
        if count and kind == previous.kind and kind in (KIND_OF_ITEM, KIND_OF_ROW):
            # Items of a list and rows of a table follow one another without a blank line.
            for place in range(state.begin, state.kept):
                out[place - 1] = out[place]
            state.begin -= 1
            state.kept -= 1
        size = points + state.kept_wide
        linked = min(state.linked * size // points if state.kept_wide else state.linked, size)
        plain = size - linked
        if kind >= FIRST_HEADING:
            score = -_LINK_COST * linked
        else:
            score = plain - _LINK_COST * linked - _BLOCK_COST
            if plain < 2 * _BLOCK_COST:
                is_ended = False
                for end in sentence_ends:
                    is_ended |= state.last == end
                score -= 0 if is_ended else _BLOCK_COST
            score = max(score, _MIN_ROW_SCORE if kind == KIND_OF_ROW else _MIN_SCORE)
        block: Any = blocks[count]
        block.first, block.end, block.kind = state.begin, state.kept, kind
        block.size, block.linked, block.score = size, linked, score
        state.num_blocks += 1
        out[state.kept] = out[state.kept + 1] = 10
        state.kept += 2
    state.begin = state.written = state.kept
    state.wide = state.kept_wide = state.pieces = state.characters = 0
    state.line_breaks = state.ends_in_break = state.linked = state.separator = 0


@njit(cache=True, nogil=True)
def _read_run(
    texts: np.ndarray,
    first: int,
    end: int,
    state: np.record,
    out: np.ndarray,
    kind: int,
    in_pre: bool,
    in_link: bool,
) -> None:
    """Read the texts between two tags into the open block."""
    length = _length(texts, first, end)
    if not in_pre and not length:
        if state.pieces and not state.ends_in_break:
            state.pieces += 1
            state.characters += 1
            state.separator = max(state.separator, _SPACE)
        return
    if in_link and not in_pre:
        state.linked += length
    state.pieces += 1
    state.ends_in_break = 0
    _add_text(texts, first, end, state, out, kind == KIND_OF_PRE)


@njit(cache=True, nogil=True)
def _open_element(elements: np.ndarray, number: int, token: np.record, role: int, first: int) -> None:
    element = elements[number]
    element.key, element.value = token.key, token.value
    element.role, element.first = role, first


@njit(cache=True, nogil=True)
def build_blocks(
    texts: np.ndarray,
    tokens: np.ndarray,
    sentence_ends: np.ndarray,
    cell_characters: int,
    max_depth: int,
    out: np.ndarray,
    blocks: np.ndarray,
    elements: np.ndarray,
) -> tuple[int, int, int, int]:
    """The blocks of a page and its elements; returns (blocks, elements, characters of text, characters that were left
    out for the role of their element), or -1 for the first where more than `max_depth` elements are inside each other.

    Args:
        texts, tokens: from `scan_markup`.
        sentence_ends: uint32 characters that end a block of prose.
        out: uint32, room for the characters of the text.
        blocks, elements: BLOCK_RECORD and ELEMENT_RECORD, filled in.
    """
    depth, num_kinds, num_elements, links, pre, left_out, place = 0, 1, 0, 0, 0, 0, 0
    opened = np.empty(max_depth + 2, np.int64)
    block_kinds = np.zeros(max_depth + 3, np.int64)
    state = np.zeros(1, _STATE)[0]
    while place < len(tokens):
        token = tokens[place]
        value = int(token.value)
        what, own = value & 7, value >> KIND_BITS & 15
        kind = block_kinds[num_kinds - 1]
        row_kind = 0 if kind == KIND_OF_ROW else kind
        place += 1
        if token.kind == START:
            element, role = NO_ELEMENT, int(token.role)
            if what in (INLINE, LINK):
                links += what == LINK
                if role == _HIDDEN:
                    place = np.int64(token.other)
                elif role >= _DETAIL and state.pieces == 0:
                    element = num_elements
            elif what == BREAK:
                if state.ends_in_break and not pre:  # two in a row end a paragraph
                    _end_block(state, out, row_kind, sentence_ends, blocks)
                elif state.pieces:
                    _add_separator(state, out, _LINE, kind == KIND_OF_PRE)
            elif what == UNSEEN:
                place = np.int64(token.other)
            elif what == CELL:
                if state.line_breaks:  # cells of several lines are columns of a page
                    _end_block(state, out, row_kind, sentence_ends, blocks)
                elif state.pieces:
                    _add_separator(state, out, _TAB, kind == KIND_OF_PRE)
                role, element = 0, num_elements
            else:
                if state.pieces:
                    _end_block(state, out, kind, sentence_ends, blocks)
                until = place
                while tokens[until].kind == TEXT:
                    until += 1
                first = int(tokens[place].first) if until > place else 0
                end = int(tokens[until - 1].end) if until > place else 0
                is_leaf = tokens[until].kind != START
                is_named = not is_leaf or (token.flags & HAS_ATTRIBUTES) != 0
                is_hidden = (
                    is_named and role >= _DETAIL and not token.flags & HAS_PROSE and not value & SUBSTANCE
                )
                if is_hidden or (is_leaf and _length(texts, first, end) == 0):
                    opened[depth] = NO_ELEMENT
                    depth += 1
                    place = np.int64(token.other)
                    for hidden in tokens[until:place]:
                        left_out += hidden.end - hidden.first if hidden.kind == TEXT else 0
                    continue
                if is_named:
                    element = num_elements
                is_pre, kind = own == KIND_OF_PRE, kind if own == INHERITED else own
                if is_leaf and not is_pre:
                    state.linked = end - first if links else 0
                    _add_text(texts, first, end, state, out, kind == KIND_OF_PRE)
                    if is_named:
                        _open_element(elements, num_elements, token, role, state.num_blocks)
                    _end_block(state, out, kind, sentence_ends, blocks)
                    if is_named:
                        elements[num_elements].end = state.num_blocks
                        num_elements += 1
                    element, place = NO_ELEMENT, until
                else:
                    element = element if is_named else NAMELESS
                    pre += is_pre
            if element >= 0:
                _open_element(elements, element, token, role, state.num_blocks)
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
            element = int(opened[depth])
            if element != NO_ELEMENT:
                if what != CELL:
                    if state.pieces:
                        _end_block(state, out, kind, sentence_ends, blocks)
                elif state.characters > cell_characters:
                    _end_block(state, out, row_kind, sentence_ends, blocks)
                if element >= 0:
                    elements[element].end = state.num_blocks
                num_kinds -= 1
                pre -= what == BLOCK and own == KIND_OF_PRE
            links -= what == LINK
        kind = block_kinds[num_kinds - 1]
        until = place
        while until < len(tokens) and tokens[until].kind == TEXT:
            until += 1
        if until > place:
            first, end = int(tokens[place].first), int(tokens[until - 1].end)
            _read_run(texts, first, end, state, out, kind, pre > 0, links > 0)
            place = until
    kind = block_kinds[num_kinds - 1]
    _end_block(state, out, kind, sentence_ends, blocks)
    return state.num_blocks, num_elements, state.written, left_out


# -- a page --------------------------------------------------------------------------------------------------

HEADINGS = names("h1 h2 h3 h4 h5 h6")
SENTENCE_ENDS = frozenset(".!?…:;\"'”’»)]。！？」』।۔؟")
_ENDS = np.array(sorted(map(ord, SENTENCE_ENDS)), dtype=np.uint32)
_CELL_CHARACTERS = 150
"""A table's cell with more text is a block of its own: tables are used for layout as well."""


@dataclass(slots=True)
class Block:
    """Text without a break in it."""

    text: str
    kind: str
    """`p`, `li`, `tr`, `pre`, `h1` to `h6`, or "" for text that no such element holds."""
    size: int
    """Characters; in scripts that write a syllable or a word with one character, each counts twice."""
    linked: int
    """Characters in links, counted alike."""
    score: int
    """How much it counts for the elements around it, or against them."""

    @property
    def plain(self) -> int:
        """Characters outside links."""
        return self.size - self.linked


@dataclass(frozen=True, slots=True)
class Blocks:
    """A page's blocks and the elements around them, both in the order of the page."""

    title: str
    text: str
    """Text of all blocks, in order."""
    blocks: np.ndarray
    """[blocks] BLOCK_RECORD."""
    elements: np.ndarray
    """[elements] ELEMENT_RECORD."""
    left_out: int
    """Characters of text in elements that were left out for their names."""

    def bounds(self, role: Role) -> list[tuple[int, int]]:
        """(first block, the one after the last) of each element with a role."""
        return self.elements[self.elements["role"] == role][["first", "end"]].tolist()

    def take(self, chosen: np.ndarray) -> list[Block]:
        """Blocks as objects.

        Args:
            chosen: [blocks] bool, or their numbers.
        """
        text = self.text
        return [
            Block(text[first:end], KINDS[kind], size, linked, score)
            for first, end, kind, size, linked, score in self.blocks[chosen].tolist()
        ]


def read_blocks(html: str, max_depth: int) -> Blocks | None:
    """The blocks of a page without what no reader sees, such as scripts and form fields; None for a page without any
    element.

    Raises:
        UnreadableError: more than `max_depth` elements are inside each other.
    """
    page = read_tokens(html)
    if page is None:
        return None
    max_depth = min(max_depth, MAX_DEPTH)
    # A separator or the end of a block stands for a token.
    out = np.empty(len(page.texts) + 2 * len(page.tokens) + 2, dtype=np.uint32)
    blocks, elements = (np.empty(len(page.tokens), dtype=kind) for kind in (BLOCK_RECORD, ELEMENT_RECORD))
    num_blocks, num_elements, size, left_out = build_blocks(
        page.texts, page.tokens, _ENDS, _CELL_CHARACTERS, max_depth, out, blocks, elements
    )
    if num_blocks < 0:
        raise UnreadableError(f"the page has more than {max_depth} elements inside each other")
    text = out[:size].tobytes().decode("utf-32-le")
    return Blocks(page.title, text, blocks[:num_blocks], elements[:num_elements], left_out)
