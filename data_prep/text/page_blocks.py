"""An HTML page as blocks of text (paragraphs, headings, list items, table rows) and the elements that hold them, with
the role that an element has by its tag and names: article, comment, byline, ..."""

from __future__ import annotations

import html as html_escapes
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from lxml import etree  # pyright: ignore[reportAttributeAccessIssue]

from data_prep.text import UnreadableError, names, table
from data_prep.text import page_scan as kernel
from data_prep.text.page_blocks_kernel import BLOCK_RECORD, ELEMENT_RECORD, build_blocks

# -- the roles of elements ------------------------------------------------------------------------------------


class Role(IntEnum):
    """The role of an element's text, as far as tag and names show it."""

    NONE = 0
    BODY = 1
    """An article's text, without its surroundings."""
    DETAIL = 2
    """Belongs to an article, but not to its text: byline, date, caption, tags, buttons."""
    ASIDE = 3
    """Belongs to the site or to other articles: navigation, teasers, advertisements, forms."""
    OTHERS = 4
    """By other people or of other articles, often longer than the article: comments, related articles."""
    HIDDEN = 5
    """Not shown."""


_ATTRIBUTE_NAMES = ("class", "id", "itemprop", "property", "hidden", "aria-hidden", "style", "role")
"""Attributes that may name a role, in the order of `CLASS` to `ROLE`."""
_LANDMARKS = names("body html main article")
"""Their names describe the page as a whole, such as `article has-comments`."""
_NAMES = table("page_names")


def _roles(kind: str) -> dict[str, Role]:
    """The roles of the names of a kind in `page_names.yaml`."""
    return {name: Role[role] for role, listed in _NAMES[kind].items() for name in listed.split()}


def hash_table(values: Mapping[str, int]) -> kernel.Table:
    """The values of names."""
    size = 1 << (4 * len(values)).bit_length()
    hashes, numbers = np.zeros(size, dtype=np.uint64), np.zeros(size, dtype=np.int32)
    for name, value in values.items():
        hashed = 0xCBF29CE484222325
        for byte in name.encode():
            hashed = (hashed ^ byte) * 0x100000001B3 % (1 << 64)
        place = hashed % size
        while numbers[place]:
            place = (place + 1) % size
        hashes[place], numbers[place] = hashed, value << 1 | 1
    return hashes, numbers


_WORDS: dict[str, int] = defaultdict(int)
"""Hints that words give, as the compiled loop reads them."""
for _word, _role in _roles("words").items():
    _WORDS[_word], _WORDS[_word + "s"] = _role, _role
for _start, _role in _roles("beginnings").items():
    _WORDS[_start] |= _role << kernel.START_BIT
for _end in ("comment", "comments"):
    _WORDS[_end] |= kernel.END_BIT


# -- what tags do -------------------------------------------------------------------------------------------------

_EFFECTS: dict[str, int] = {
    tag: getattr(kernel, effect) for effect, tags in _NAMES["effects"].items() for tag in tags.split()
}
_TAGS = _roles("tags")
KINDS = ("", "p", "li", "tr", "pre", "h1", "h2", "h3", "h4", "h5", "h6")
"""Kinds of blocks, by their numbers in the compiled loops."""
_KIND_OF_TAG = {"dt": "li", "dd": "li", "blockquote": "p"} | dict.fromkeys(("table", "ul", "ol", "dl"), "")
_KIND_OF_TAG |= {kind: kind for kind in KINDS[1:]}
_BITS = {
    kernel.TITLE: {"title"},
    kernel.SUBSTANCE: {"figure", "header"},
    kernel.HEADER: {"header"},
    kernel.LANDMARK: {"article", "main"},
}


def _value_of(tag: str) -> int:
    """The bits of a tag, as the kernel reads them."""
    kind = _KIND_OF_TAG.get(tag)
    return (
        _EFFECTS.get(tag, kernel.BLOCK)
        | (kernel.INHERITED if kind is None else KINDS.index(kind)) << kernel.KIND_BITS
        | _TAGS.get(tag, Role.NONE) << kernel.ROLE_BITS
        | sum(bit for bit, tags in _BITS.items() if tag in tags)
    )


_TABLES = kernel.Tables(
    tags=hash_table(
        {tag: _value_of(tag) for tag in (*_EFFECTS, *_KIND_OF_TAG, *_TAGS, "title", "article", "main")}
    ),
    attributes=hash_table({name: number for number, name in enumerate(_ATTRIBUTE_NAMES)}),
    pages=hash_table(dict.fromkeys(_LANDMARKS, 0)),
    marks=hash_table(
        {**_roles("properties"), **dict.fromkeys(_NAMES["aria"].split(), kernel.ARIA), "true": kernel.TRUE}
    ),
    words=hash_table(_WORDS),
    states=hash_table(dict.fromkeys(_NAMES["states"].split(), 0)),
)


def role_of_names(classes: str) -> Role:
    """The role by an element's classes; of several, the last in the order of `Role`."""
    data = np.frombuffer(classes.encode("utf-8"), dtype=np.uint8)
    room = np.empty((len(data) + 1, 2), dtype=np.int64)
    tables = _TABLES.words, _TABLES.states
    return Role(kernel.role_of_names(data, 0, len(data), False, *tables, room))


# -- blocks --------------------------------------------------------------------------------------------------

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
    root = etree.fromstring(html.encode("utf-8", "replace").translate(_CONTROL, _DROPPED), _PARSER)
    if root is None:
        return None
    root.getroottree().docinfo.clear()  # a page that says it is XHTML is written otherwise
    markup = etree.tostring(root, encoding="utf-8", xml_declaration=False, with_tail=False)
    too_deep = f"the page has more than {max_depth} elements inside each other"
    data, texts = np.frombuffer(markup, dtype=np.uint8), np.empty(len(markup), dtype=np.uint32)
    tokens = np.zeros(3 * markup.count(b"<"), dtype=kernel.TOKEN)
    opened = np.empty(_MAX_OPEN, dtype=np.int32)
    count, title = kernel.scan_markup(data, _TABLES, PROSE, tokens, opened, texts)
    if count < 0:
        raise UnreadableError(too_deep)
    found = markup[title : markup.index(b"<", title)].decode("utf-8") if title >= 0 else ""
    title_text = html_escapes.unescape(found.replace("&#xFFFD;", ""))  # a character that XML lacks
    out = np.empty(len(markup) + 2, dtype=np.uint32)
    blocks, elements = np.empty(count, dtype=BLOCK_RECORD), np.empty(count, dtype=ELEMENT_RECORD)
    num_blocks, num_elements, size, left_out = build_blocks(
        texts, tokens[:count], _ENDS, _CELL_CHARACTERS, max_depth, out, blocks, elements
    )
    if num_blocks < 0:
        raise UnreadableError(too_deep)
    text = out[:size].tobytes().decode("utf-32-le")
    return Blocks(title_text, text, blocks[:num_blocks], elements[:num_elements], left_out)
