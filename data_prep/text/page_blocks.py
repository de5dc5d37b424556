"""An HTML page as blocks of text (paragraphs, headings, list items, table rows) and the elements that hold them."""

from __future__ import annotations

import html as html_escapes
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from lxml import etree  # pyright: ignore[reportAttributeAccessIssue]

from data_prep.text import names
from data_prep.text import page_scan as kernel
from data_prep.text.page_blocks_kernel import build_blocks
from data_prep.text.page_roles import ATTRIBUTES, find_roles

MAX_DEPTH = 2000
"""libxml2 cuts a tree at 2,048 elements inside each other, and says nothing."""
HEADINGS = names("h1 h2 h3 h4 h5 h6")
_PARSER = etree.HTMLParser(
    encoding="utf-8", remove_comments=True, remove_pis=True, no_network=True, huge_tree=True
)
PROSE = 60
"""Least characters of plain text in a block of prose."""
_CELL_CHARACTERS = 150
"""A table's cell with more text is a block of its own: tables are used for layout as well."""
SENTENCE_ENDS = frozenset(".!?…:;\"'”’»)]。！？」』।۔؟")
_ENDS = np.array(sorted(map(ord, SENTENCE_ENDS)), dtype=np.uint32)
_CONTROL = bytes.maketrans(b"\x0b\x0c\x1c\x1d\x1e\x1f", b"\n\n    ")
_DROPPED = bytes([*range(1, 9), *range(14, 28)])
"""XML has no control characters; those that are white space become other white space."""
_MAX_OPEN = 1 << 12


class TooDeepError(ValueError):
    """More elements inside each other than allowed."""


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
    """[blocks, 6] int32: first character and the one after the last, kind, size, characters in links, score."""
    elements: np.ndarray
    """[elements, 5] int32: hash of tag and classes, role, first block and the one after the last, and the
    tag's bits."""
    left_out: int
    """Characters of text in elements that were left out for their names."""

    def take(self, chosen: np.ndarray) -> list[Block]:
        """Blocks as objects.

        Args:
            chosen: [blocks] bool, or their numbers.
        """
        text = self.text
        return [
            Block(text[first:end], kernel.KINDS[kind], size, linked, score)
            for first, end, kind, size, linked, score in self.blocks[chosen].tolist()
        ]


def read_blocks(html: str, max_depth: int) -> Blocks | None:
    """The blocks of a page without what no reader sees, such as scripts and form fields; None for a page without any
    element.

    Raises:
        TooDeepError: more than `max_depth` elements are inside each other.
    """
    root = etree.fromstring(html.encode("utf-8", "replace").translate(_CONTROL, _DROPPED), _PARSER)
    if root is None:
        return None
    root.getroottree().docinfo.clear()  # a page that says it is XHTML is written otherwise
    markup = etree.tostring(root, encoding="utf-8", xml_declaration=False, with_tail=False)
    tokens = _scan(markup)
    what = tokens.values & 7
    is_inline = (what == kernel.INLINE) | (what == kernel.LINK)
    named = np.flatnonzero(tokens.flags & kernel.HAS_NAMES)
    keys = find_roles(tokens.data, named, tokens.firsts, tokens.ends, is_inline, tokens.roles)
    out = np.empty(len(markup) + 2, dtype=np.uint8)
    blocks = np.empty((len(keys), 6), dtype=np.int32)
    elements = np.empty((len(keys), 5), dtype=np.int32)
    num_blocks, num_elements, size, left_out = build_blocks(
        *tokens[2:], keys, _ENDS, _CELL_CHARACTERS, max_depth, out, blocks, elements
    )
    if num_blocks < 0:
        raise TooDeepError
    text = out[:size].tobytes().decode("utf-8")
    return Blocks(tokens.title, text, blocks[:num_blocks], elements[:num_elements], left_out)


class _Tokens(NamedTuple):
    """A serialized page in tokens; see `kernel.scan_markup`."""

    title: str
    data: np.ndarray
    texts: np.ndarray
    kinds: np.ndarray
    values: np.ndarray
    firsts: np.ndarray
    ends: np.ndarray
    others: np.ndarray
    flags: np.ndarray
    roles: np.ndarray


def _scan(markup: bytes) -> _Tokens:
    size = 3 * markup.count(b"<")
    kinds, flags, roles = np.zeros((3, size), dtype=np.int8)
    values, firsts, ends, others = np.empty((4, size), dtype=np.int32)
    columns = (kinds, values, firsts, ends, others, flags, roles)
    data, texts = np.frombuffer(markup, dtype=np.uint8), np.empty(len(markup), dtype=np.uint32)
    opened = np.empty(_MAX_OPEN, dtype=np.int32)
    count, title = kernel.scan_markup(data, *kernel.TAG_TABLE, *ATTRIBUTES, PROSE, *columns, opened, texts)
    if count < 0:
        raise TooDeepError
    found = markup[title : markup.index(b"<", title)].decode("utf-8") if title >= 0 else ""
    title_text = html_escapes.unescape(found.replace("&#xFFFD;", ""))  # a character that XML lacks
    return _Tokens(title_text, data, texts, *(column[:count] for column in columns))
