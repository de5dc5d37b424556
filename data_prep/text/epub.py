"""EPUB files: container, package document and spine, read within limits (EPUB 3.3, sections 4 and 5)."""

from __future__ import annotations

import posixpath
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO
from urllib.parse import unquote

from data_prep.text import UnreadableError
from data_prep.text.xml import parse_xml

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


@dataclass(frozen=True, slots=True)
class Package:
    """The contents of the package document."""

    title: str
    author: str
    lang: str
    documents: tuple[str, ...]
    """Names of the members that make the text, in reading order; covers and tables of contents are left out."""


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

    def package(self) -> Package:
        """The title, author, language and reading order.

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
        return Package(
            title=_first(root, "title"),
            author="; ".join(_all(root, "creator")),
            lang=_first(root, "language"),
            documents=tuple(_reading_order(root, posixpath.dirname(path))),
        )

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
