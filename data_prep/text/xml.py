"""Books in markup (TEI, XHTML) to chapters of paragraphs, by the roles that a format gives its elements."""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from html.entities import html5
from typing import Any, Literal

from lxml import etree  # pyright: ignore[reportAttributeAccessIssue]

from data_prep.text import UnreadableError
from data_prep.text.encodings import utf16_encoding

_SPACES, _MANY_SPACES = re.compile(r"\s+"), re.compile(" {2,}")
_LINE_BREAKS = re.compile(r" ?\n[ \n]*")
_SUBSET = re.compile(
    rb"<!DOCTYPE\s+[^\s\[>]+(?:\s+(?:SYSTEM|PUBLIC)(?:\s*(?:\"[^\"]*\"|'[^']*')){1,2})?\s*\["
)
"""The beginning of a document up to where it declares entities of its own."""
_REFERENCE = re.compile(r"&([^#;&\s]+);")
_PREDEFINED = frozenset({"amp", "lt", "gt", "quot", "apos"})


@dataclass(frozen=True, slots=True)
class Roles:
    """Roles of the elements of a format, by local name; an element without a role is a part of its line."""

    paragraphs: frozenset[str]
    lines: frozenset[str]
    """Elements that have lines of their own within a paragraph, or break it."""
    spaces: frozenset[str]
    """Elements that separate words, and no more."""
    headings: frozenset[str]
    is_hidden: Callable[[Any], bool]
    """Whether an element shows nothing, such as a note."""


def parse_xml(data: bytes) -> Any:
    """The root element; entities that the document itself declares are expanded, others stay as nodes.

    Nothing is fetched. libxml2 bounds the depth of the tree (256) and what entities may expand to (the size of the
    document five times, beyond a first megabyte).

    Raises:
        UnreadableError: the bytes are no XML, expand or nest beyond measure, or a part of them lies in another file;
            of UTF-16, its offset is in the text as UTF-8.
    """
    utf8, encoding = data, None
    if utf16 := utf16_encoding(data):
        decoder = codecs.getincrementaldecoder(utf16)("surrogatepass")
        utf8, encoding = decoder.decode(data).encode("utf-8", "surrogatepass"), "utf-8"
    root = _tree(utf8, encoding, resolve_entities=False)
    declarations = root.getroottree().docinfo.internalDTD
    # The document's own entities; None for a file of another kind.
    contents = (
        {} if declarations is None else {each.name: each.content for each in declarations.iterentities()}
    )
    used = {node.name for node in root.iter(etree.Entity)} if contents else set()
    if used.isdisjoint(contents):
        return root
    for name in sorted(used & contents.keys()):
        if contents[name] is None:
            raise UnreadableError(f"its entity {name!r} lies in another file, and is not read")
    used.update(*(_REFERENCE.findall(content) for content in contents.values() if content))
    # Ahead of its own entities, the document declares what `entity_text` says of others.
    declared = "".join(
        f'<!ENTITY {name} "{"".join(f"&#38;#{ord(character)};" for character in entity_text(name))}">'
        for name in sorted(used - contents.keys() - _PREDEFINED)
        if name.isascii()
    )
    utf8 = _SUBSET.sub(lambda found: found.group() + declared.encode(), utf8, count=1)
    return _tree(utf8, encoding, resolve_entities="internal")


def _tree(utf8: bytes, encoding: str | None, *, resolve_entities: bool | Literal["internal"]) -> Any:
    parser = etree.XMLParser(
        encoding=encoding,
        resolve_entities=resolve_entities,
        no_network=True,
        load_dtd=False,
        huge_tree=False,
        remove_comments=True,
        remove_pis=True,
    )
    try:
        return etree.fromstring(utf8, parser)
    except etree.XMLSyntaxError as error:
        (line, column), start = error.position, 0
        for _ in range(line - 1):
            start = utf8.find(b"\n", start) + 1
        offset = min(len(utf8), start + max(0, column - 1))
        raise UnreadableError(f"malformed XML: {error.msg}", offset) from None
    except ValueError as error:
        raise UnreadableError(f"malformed XML: {error}") from None


def local_name(element: Any) -> str:
    """An element's name without its namespace."""
    return element.tag.rpartition("}")[2]


class BookBuilder:
    """Collects a book's chapters from one or several trees."""

    def __init__(self, roles: Roles) -> None:
        self._roles = roles
        self._buffer: list[str] = []
        self._has_body = False
        self.parts: list[list[str]] = [[]]
        """Chapters of paragraphs; lines of verse are separated by line breaks."""
        self.headed: list[bool] = []
        """Whether each chapter that has text begins with a heading."""

    def start_chapter(self) -> None:
        """Begin a new chapter, unless only headings came since the last one began."""
        self._end_paragraph()
        if self._has_body:
            self.parts.append([])
            self._has_body = False

    def add(self, root: Any, opens_chapter: Callable[[Any], bool]) -> None:
        """Append the text of a tree.

        Args:
            opens_chapter: whether a chapter begins with an element.
        """
        roles = self._roles
        for event, node in _walk(root, roles.is_hidden):
            if event == "text":
                self._buffer.append(_SPACES.sub(" ", node))
                continue
            name = local_name(node)
            if name in roles.lines:
                self._buffer.append("\n")
            elif name in roles.spaces:
                self._buffer.append(" ")
            elif name in roles.paragraphs:
                self._end_paragraph(is_heading=event == "end" and name in roles.headings)
            if event == "start" and opens_chapter(node):
                self.start_chapter()
        self._end_paragraph()

    def _end_paragraph(self, *, is_heading: bool = False) -> None:
        text = _LINE_BREAKS.sub("\n", "".join(self._buffer)).strip()
        self._buffer.clear()
        if text:
            if not self.parts[-1]:
                self.headed.append(is_heading)
            self.parts[-1].append(_MANY_SPACES.sub(" ", text))
            self._has_body = self._has_body or not is_heading


def _walk(root: Any, is_hidden: Callable[[Any], bool]) -> Iterator[tuple[str, Any]]:
    """("start" or "end", element) and ("text", string) in document order, without hidden elements."""
    stack = [(root, iter(root))]
    yield "start", root
    if root.text:
        yield "text", root.text
    while stack:
        element, children = stack[-1]
        child = next(children, None)
        if child is None:
            stack.pop()
            yield "end", element
            done = element if stack else None
        elif child.tag is etree.Entity:
            yield "text", entity_text(child.name)
            done = child
        elif not isinstance(child.tag, str) or is_hidden(child):
            done = child
        else:
            yield "start", child
            if child.text:
                yield "text", child.text
            stack.append((child, iter(child)))
            done = None
        if done is not None and done.tail:
            yield "text", done.tail


def entity_text(name: str) -> str:
    """The character that HTML knows by this name; other references stay as they are written."""
    return html5.get(f"{name};", f"&{name};")
