"""Books as EPUB, one document per file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Literal

import lxml.html
from lxml import etree  # pyright: ignore[reportAttributeAccessIssue]

from data_prep.document import Document
from data_prep.sources.base import Skipped, SourceFile
from data_prep.sources.books import BooksConfig, primary_language
from data_prep.sources.streams import open_file
from data_prep.text import UnreadableError, names
from data_prep.text.books import CHAPTER_BREAK, join_chapters, take_off_frame
from data_prep.text.encodings import AUTO, decode_text
from data_prep.text.epub import Epub, Package
from data_prep.text.xml import BookBuilder, Roles, local_name, parse_xml

_HEADINGS = frozenset({"h1", "h2", "h3", "h4", "h5", "h6"})
_CHAPTER_HEADINGS = frozenset({"h1", "h2"})
_HIDDEN = names("head script style svg img image object audio video nav iframe math form template rt rp")
_EPUB_TYPE = "{http://www.idpf.org/2007/ops}type"
_HIDDEN_TYPES = names(
    "cover titlepage copyright-page toc landmarks loi lot index footnote endnote footnotes endnotes "
    "rearnote rearnotes noteref pagebreak page-list"
)
_GUTENBERG_IDS = frozenset({"pg-header", "pg-footer", "pg-machine-header"})
_DECLARATION = re.compile(rb"\s*<\?xml[^>]{0,200}\?>")


def _is_hidden(element: Any) -> bool:
    if local_name(element) in _HIDDEN or element.get("id") in _GUTENBERG_IDS:
        return True
    types = element.get(_EPUB_TYPE) or element.get("epub:type") or element.get("role", "").replace("doc-", "")
    return bool(types) and not _HIDDEN_TYPES.isdisjoint(types.lower().split())


_ROLES = Roles(
    paragraphs=_HEADINGS
    | names(
        "p div section article header footer main aside blockquote ul ol li dl dt dd table tr hr pre center "
        "figure figcaption body html address"
    ),
    lines=frozenset({"br"}),
    spaces=frozenset({"td", "th"}),
    headings=_HEADINGS,
    is_hidden=_is_hidden,
)


class BooksEpubConfig(BooksConfig):
    """EPUB files. Covers, tables of contents and notes are left out."""

    kind: Literal["books_epub"] = "books_epub"

    def documents_of(self, file: SourceFile) -> Iterator[Document | Skipped]:
        """The book as one document, with the title, author and language of its package; skipped when it is empty.
        `byte_end` is the size of the file."""
        with open_file(file.path) as stored:
            epub = Epub(stored, self.max_book_bytes)
            package = epub.package()
            parts = _chapters(epub, package)
            size = stored.seek(0, 2)
        text = take_off_frame(join_chapters(parts)).text
        yield self.book(
            file,
            [part.split("\n\n") for part in text.split(CHAPTER_BREAK)],
            size_bytes=size,
            title=package.title,
            author=package.author,
            lang=primary_language(package.lang),
        )


def _chapters(epub: Epub, package: Package) -> list[list[str]]:
    """Chapters begin at headings of the first two levels, and where a file of the book begins.

    A file without a heading, in a book where most have one, continues the previous chapter: big chapters are
    cut into several files.
    """
    builder = BookBuilder(_ROLES)
    for name in package.documents:
        tree = _parse(name, epub.read(name), primary_language(package.lang) or "en")
        if tree is not None:
            builder.start_chapter()
            builder.add(tree, lambda element: local_name(element) in _CHAPTER_HEADINGS)
    parts = [part for part in builder.parts if part]
    if sum(builder.headed) * 2 <= len(parts):
        return parts
    merged: list[list[str]] = []
    for part, is_headed in zip(parts, builder.headed, strict=True):
        if is_headed or not merged:
            merged.append(part)
        else:
            merged[-1].extend(part)
    return merged


def _parse(name: str, data: bytes, lang: str) -> Any | None:
    """The tree of a file that should be XHTML, and is read as HTML where it is no XML; None when it is empty.

    Raises:
        UnreadableError: it is not XML and declares entities, which HTML does not have; or it is not text.
    """
    try:
        return parse_xml(data)
    except UnreadableError as error:
        if b"<!ENTITY" in data:
            raise UnreadableError(f"its member {name!r} is {error.reason}") from None
    try:
        text = decode_text(_DECLARATION.sub(b"", data, count=1), AUTO, lang)
    except UnreadableError as error:
        raise UnreadableError(f"its member {name!r} is {error.reason}") from None
    with suppress(etree.ParserError):
        return lxml.html.document_fromstring(text)
    return None
