"""An HTML page as blocks of text (paragraphs, headings, list items, table rows) and the elements that hold them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from lxml import etree  # pyright: ignore[reportAttributeAccessIssue]

from data_prep.sources.markup import names
from data_prep.sources.page_roles import Role, role_of, role_of_names

MAX_DEPTH = 2000
"""libxml2 cuts a tree at 2,048 elements inside each other, and says nothing."""
HEADINGS = names("h1 h2 h3 h4 h5 h6")
_PARSER = etree.HTMLParser(
    encoding="utf-8", remove_comments=True, remove_pis=True, no_network=True, huge_tree=True
)
_UNSEEN = names(
    "applet audio button canvas datalist embed head iframe input map math noscript object option rp rt script select"
    " style svg template textarea video"
)
_WITHOUT_EFFECT = names(
    "abbr acronym area b bdi bdo big code data del dfn em font i img ins kbd link mark meta meter nobr output picture"
    " progress q rb ruby s samp source strike strong sub sup track tt u var wbr"
)
"""Inline elements that change how text looks, and not what it is."""
_INLINE = names("a cite label small span time")
"""Those that may hold a byline or the like, when they begin a block."""
_KINDS = {"li": "li", "dt": "li", "dd": "li", "pre": "pre", "tr": "tr", "p": "p", "blockquote": "p"}
_KINDS |= {name: name for name in HEADINGS} | dict.fromkeys(("table", "ul", "ol", "dl"), "")
_WITH_SUBSTANCE = names("figure header")
"""Elements that may hold tables or headings besides what their names tell."""
PROSE = 60
"""Least characters of plain text in a block of prose."""
_LONG_TEXTS = etree.XPath(f"//text()[string-length() >= {PROSE // 2}]")
_CELLS = names("td th")
_CELL_CHARACTERS = 150
"""A table's cell with more text is a block of its own: tables are used for layout as well."""
_WIDE = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")
_BLOCK_COST = 20
"""Characters of plain text that a block must have to speak for its element; what has neither end nor length, twice."""
_LINK_COST = 2
"""Characters of plain text that one in a link outweighs."""
_MIN_SCORE, _MIN_ROW_SCORE = -30, -10
"""Of a block and of a table's row, so that a long list of links does not hide the text beside it."""
SENTENCE_ENDS = frozenset(".!?…:;\"'”’»)]。！？」』।۔؟")
_BREAK, _CELL = "\x01", "\x02"
"""Marks of `<br>` and of a cell's beginning; HTML has no such characters."""


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
    score: float
    """How much it speaks for the elements around it, or against them."""

    @property
    def plain(self) -> int:
        """Characters outside links."""
        return self.size - self.linked


@dataclass(slots=True)
class Element:
    """An element and the numbers of its blocks, from `first` to `end - 1`."""

    tag: str
    names: str
    """Its classes."""
    role: Role
    first: int
    end: int


_LEAF = Element("", "", Role.NONE, 0, 0)


@dataclass(frozen=True, slots=True)
class Blocks:
    """A page's blocks and the elements around them, both in the order of the page."""

    blocks: list[Block]
    elements: list[Element]


def parse_html(html: str) -> Any:
    """The root element, or None where there is none. Nothing is fetched."""
    return etree.fromstring(html.encode("utf-8", "replace"), _PARSER)


def read_blocks(root: Any, max_depth: int) -> Blocks:
    """The blocks of a page; what no reader sees, such as scripts and form fields, is removed from the tree.

    Raises:
        TooDeepError: more than `max_depth` elements are inside each other.
    """
    etree.strip_elements(root, "script", "style", with_tail=False)
    etree.strip_tags(root, *_WITHOUT_EFFECT)
    with_prose = _elements_with_prose(root)
    blocks: list[Block] = []
    elements: list[Element] = []
    stack: list[Element | None] = []  # open HTML elements; None for those that end no block
    kinds = [""]
    buffer: list[str] = []
    links = linked = preformatted = 0
    detail, hidden = Role.DETAIL, Role.HIDDEN

    def end_block(*, is_row: bool = True) -> None:
        nonlocal linked
        kind = kinds[-1]
        add_block("".join(buffer), kind if is_row or kind != "tr" else "", linked)
        buffer.clear()
        linked = 0

    def add_block(raw: str, kind: str, linked: int) -> None:
        if (block := _block(raw, kind, linked)) is not None:
            blocks.append(block)

    # One loop for every tag of every page, with as few calls as can be.
    walk = etree.iterwalk(root, events=("start", "end"))
    for event, node in walk:
        tag = node.tag
        if event == "start":
            element = None
            text = node.text
            if tag in _INLINE:
                if tag == "a":
                    links += 1
                if (classes := node.get("class")) and (role := role_of_names(classes)) >= detail:
                    if role is hidden:
                        walk.skip_subtree()
                        text = None
                    elif not buffer:
                        element = Element(tag, classes, role, len(blocks), 0)
                        elements.append(element)
                        kinds.append(kinds[-1])
            elif tag == "br":
                if buffer and buffer[-1] == _BREAK and not preformatted:
                    end_block(is_row=False)  # two in a row stand for the end of a paragraph
                elif buffer:
                    buffer.append(_BREAK)
            elif tag in _UNSEEN:
                walk.skip_subtree()
                text = None
            elif tag in _CELLS:
                if _BREAK in buffer:
                    end_block(is_row=False)  # cells of several lines are columns of a page
                elif buffer:
                    buffer.append(_CELL)
                element = Element(tag, "", Role.NONE, len(blocks), 0)
                elements.append(element)
                kinds.append(kinds[-1])
            else:
                if buffer:
                    end_block()
                is_leaf = not len(node)
                if is_leaf and (not text or text.isspace()):
                    stack.append(None)
                    continue
                attributes = dict(node.items())
                if not is_leaf or attributes:
                    role = role_of(tag, attributes)
                    if role >= detail and node not in with_prose and tag not in _WITH_SUBSTANCE:
                        walk.skip_subtree()
                        stack.append(None)
                        continue
                    element = Element(tag, attributes.get("class", ""), role, len(blocks), 0)
                    elements.append(element)
                if is_leaf and tag != "pre":
                    add_block(text, _KINDS.get(tag, kinds[-1]), len(text) if links else 0)
                    if element is not None:
                        element.end = len(blocks)
                        element = None
                    text = None
                else:
                    if element is None:
                        element = _LEAF
                    kinds.append(_KINDS.get(tag, kinds[-1]))
                    if tag == "pre":
                        preformatted += 1
            stack.append(element)
            if len(stack) > max_depth:
                raise TooDeepError
        else:
            element = stack.pop()
            if element is not None:
                if tag not in _CELLS:
                    if buffer:
                        end_block()
                elif sum(map(len, buffer)) > _CELL_CHARACTERS:
                    end_block(is_row=False)
                element.end = len(blocks)
                kinds.pop()
                if tag == "pre":
                    preformatted -= 1
            if tag == "a":
                links -= 1
            text = node.tail
        if text:
            if preformatted:
                buffer.append(text)
            elif not text.isspace():
                buffer.append(text)
                if links:
                    linked += len(text.strip())
            elif buffer and buffer[-1] != _BREAK:
                buffer.append(" ")
    end_block()
    return Blocks(blocks, elements)


def _elements_with_prose(root: Any) -> set[Any]:
    """Elements that somewhere hold a run of text of `PROSE` characters; the others can go for their names alone."""
    found: set[Any] = set()
    for text in _LONG_TEXTS(root):
        if _size(text.strip()) >= PROSE:
            element = text.getparent().getparent() if text.is_tail else text.getparent()
            while element is not None and element not in found and element.tag not in _UNSEEN:
                found.add(element)
                element = element.getparent()
    return found


def _block(raw: str, kind: str, linked: int) -> Block | None:
    if kind == "pre":
        text = raw.replace(_BREAK, "\n").replace(_CELL, "\t").strip("\n").rstrip()
    elif _BREAK in raw or _CELL in raw:
        text = "\n".join(filter(None, map(_line, raw.split(_BREAK))))
    else:
        text = " ".join(raw.split())
    if not text:
        return None
    size = _size(text)
    if size > len(text):
        linked = linked * size // len(text)
    linked = min(linked, size)
    return Block(text, kind, size, linked, _score(text, kind, size - linked, linked))


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text) + len(_WIDE.findall(text))


def _score(text: str, kind: str, plain: int, linked: int) -> float:
    if kind in HEADINGS:
        return -_LINK_COST * linked
    score = plain - _LINK_COST * linked - _BLOCK_COST
    if plain < 2 * _BLOCK_COST and text[-1] not in SENTENCE_ENDS:
        score -= _BLOCK_COST
    return max(score, _MIN_ROW_SCORE if kind == "tr" else _MIN_SCORE)


def _line(raw: str) -> str:
    """A line, the cells of a table's row parted by tabs."""
    return "\t".join(filter(None, (" ".join(cell.split()) for cell in raw.split(_CELL))))
