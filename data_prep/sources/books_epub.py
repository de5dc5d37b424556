"""Books as EPUB, one document per file, from the spine of the package (EPUB 3.3, sections 4 and 5)."""

from __future__ import annotations

import posixpath
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, BinaryIO, Literal
from urllib.parse import unquote

import lxml.html
from lxml import etree  # pyright: ignore[reportAttributeAccessIssue]

from data_prep.document import Document
from data_prep.sources.base import Skipped, SourceFile
from data_prep.sources.books import BooksConfig, primary_language
from data_prep.sources.streams import open_file
from data_prep.text import UnreadableError, names
from data_prep.text.books import CHAPTER_BREAK, join_chapters, take_off_frame
from data_prep.text.encodings import AUTO, decode_text
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
            title, author, lang, documents = epub.package()
            lang = primary_language(lang)
            parts = _chapters(epub, documents, lang or "en")
            size = stored.seek(0, 2)
        text = take_off_frame(join_chapters(parts)).text
        yield self.book(
            file,
            [part.split("\n\n") for part in text.split(CHAPTER_BREAK)],
            size_bytes=size,
            title=title,
            author=author,
            lang=lang,
        )


def _chapters(epub: Epub, documents: Sequence[str], lang: str) -> list[list[str]]:
    """Chapters begin at headings of the first two levels, and where a file of the book begins.

    A file without a heading, in a book where most have one, continues the previous chapter: big chapters are
    cut into several files.
    """
    builder = BookBuilder(_ROLES)
    for name in documents:
        tree = _parse(name, epub.read(name), lang)
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


# -- the zip file --------------------------------------------------------------------------------------------

MAX_DIRECTORY_BYTES = 16 << 20
"""A zip file's list of members may take this much; zipfile holds it in memory."""
_END_RECORD, _END_RECORD_BYTES = b"PK\x05\x06", 22
_LONGEST_COMMENT = 1 << 16
_ENCRYPTED = 0x1
_CONTENT_TYPES = frozenset(
    {"application/xhtml+xml", "text/html", "application/x-dtbook+xml", "text/x-oeb1-document"}
)
_FRAME = re.compile(
    r"(?:^|[/_. -])(?:cover|nav|toc|titlepage|title-page|copyright)(?:page)?(?:[_. -]|$)", re.IGNORECASE
)
_FRAME_REFERENCES = frozenset({"cover", "title-page", "toc", "copyright-page", "index", "loi", "lot"})
_BAD_ZIP = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    OSError,
    struct.error,
    RuntimeError,
    NotImplementedError,
    ValueError,
)
"""Errors of zipfile on damaged, encrypted or unknown members."""


class Epub:
    """An open EPUB; at most `max_bytes` of it are decompressed."""

    def __init__(self, file: BinaryIO, max_bytes: int) -> None:
        """Read its list of members.

        Raises:
            UnreadableError: it is no zip file, or a monstrous one.
        """
        _check_directory(file)
        try:
            self._zip = zipfile.ZipFile(file)
        except _BAD_ZIP as error:
            raise UnreadableError(f"not a readable zip file: {error}") from None
        names = self._zip.namelist()
        self._members = frozenset(names)
        self._folded = {_folded(name): name for name in reversed(names)}
        self._max_bytes = max_bytes
        self.num_read = 0
        """Bytes decompressed so far."""

    def read(self, name: str) -> bytes:
        """The bytes of a member.

        Raises:
            UnreadableError: it is missing, damaged, encrypted, or more than the file may hold.
        """
        try:
            info = self._zip.getinfo(self._name_of(name))
        except KeyError:
            raise UnreadableError(f"its member {name!r} is missing") from None
        if info.flag_bits & _ENCRYPTED:
            raise UnreadableError(f"its member {name!r} is encrypted", info.header_offset)
        try:
            with self._zip.open(info) as member:
                data = member.read(self._max_bytes - self.num_read + 1)
        except _BAD_ZIP as error:
            raise UnreadableError(f"its member {name!r} is damaged: {error}", info.header_offset) from None
        self.num_read += len(data)
        if self.num_read > self._max_bytes:
            raise UnreadableError(f"longer than the limit of {self._max_bytes} bytes", info.header_offset)
        return data

    def package(self) -> tuple[str, str, str, list[str]]:
        """(title, author, language, names of the members that make the text in reading order), without covers and
        tables of contents.

        Raises:
            UnreadableError: they cannot be read.
        """
        container = self._xml("META-INF/container.xml")
        path = next((each.get("full-path") for each in container.iter("{*}rootfile")), None)
        if not path:
            raise UnreadableError("META-INF/container.xml names no package document")
        if "META-INF/encryption.xml" in self._members:
            references = self._xml("META-INF/encryption.xml").iter("{*}CipherReference")
            # Encrypted fonts do no harm.
            if any(each.get("URI", "").lower().endswith(("html", "htm", "xml")) for each in references):
                raise UnreadableError("its text is encrypted (digital rights management)")
        root = self._xml(path)
        documents = list(_reading_order(root, posixpath.dirname(path)))
        return _first(root, "title"), "; ".join(_all(root, "creator")), _first(root, "language"), documents

    def _name_of(self, name: str) -> str:
        """The member that readers take for `name`: some books have other capitals, `./`, or `%20` in their zip."""
        return name if name in self._members else self._folded.get(_folded(name), name)

    def _xml(self, name: str) -> Any:
        data = self.read(name)
        try:
            return parse_xml(data)
        except UnreadableError as error:
            offset = self._zip.getinfo(self._name_of(name)).header_offset
            raise UnreadableError(f"its member {name!r} is {error.reason}", offset) from None


def _check_directory(file: BinaryIO) -> None:
    size = file.seek(0, 2)
    file.seek(max(0, size - _LONGEST_COMMENT - _END_RECORD_BYTES))
    tail = file.read()
    start = tail.rfind(_END_RECORD)
    if start < 0 or len(tail) - start < _END_RECORD_BYTES:
        raise UnreadableError("not a zip file, or one that was cut off: it has no list of members", size)
    (directory_bytes,) = struct.unpack_from("<I", tail, start + 12)
    if directory_bytes > MAX_DIRECTORY_BYTES:
        raise UnreadableError(f"its list of members is longer than {MAX_DIRECTORY_BYTES} bytes", size)
    file.seek(0)


def _reading_order(root: Any, directory: str) -> Iterator[str]:
    items = {item.get("id"): item for item in root.iter("{*}item")}
    frame = {
        _member(directory, reference.get("href", ""))
        for reference in root.iter("{*}reference")
        if reference.get("type", "").lower() in _FRAME_REFERENCES
    }
    seen: set[str] = set()
    for reference in root.iter("{*}itemref"):
        item = items.get(reference.get("idref"))
        if item is None or reference.get("linear") == "no" or _is_frame(item):
            continue
        name = _member(directory, item.get("href", ""))
        if name not in frame and name not in seen:
            seen.add(name)
            yield name


def _is_frame(item: Any) -> bool:
    """Whether an item of the manifest is no text: navigation, a cover, an image."""
    if (
        item.get("media-type", "").strip().lower() not in _CONTENT_TYPES
        or "nav" in item.get("properties", "").split()
    ):
        return True
    return bool(_FRAME.search(item.get("id", "")) or _FRAME.search(posixpath.basename(item.get("href", ""))))


def _folded(name: str) -> str:
    return posixpath.normpath(unquote(name)).lstrip("/").casefold()


def _member(directory: str, href: str) -> str:
    return posixpath.normpath(posixpath.join(directory, unquote(href.partition("#")[0])))


def _all(root: Any, name: str) -> list[str]:
    found = [each for each in root.iter(f"{{*}}{name}") if "purl.org/dc" in each.tag.lower()]
    return [text for text in (" ".join("".join(each.itertext()).split()) for each in found) if text]


def _first(root: Any, name: str) -> str:
    return next(iter(_all(root, name)), "")
