"""Files that hold one document each: books, as plain text here, and any other plain text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from pydantic import Field, field_validator

from data_prep.document import Document
from data_prep.sources.base import Skipped, SourceFile, WholeFiles, expand_patterns, read_whole
from data_prep.text import UnreadableError, clean_text
from data_prep.text.books import join_chapters, split_chapters, take_off_frame
from data_prep.text.encodings import AUTO, decode_text, known_encoding
from data_prep.text.wrapping import LineWrap, paragraphs_of

_PACKING = re.compile(r"(\.(?:txt|text|xml|tei|epub))?(\.(?:gz|bz2|xz|zst))?$", re.IGNORECASE)
_LANGUAGE = re.compile(r"[a-z]{2,3}(?=-|$)")
_HTML = re.compile(r"\s*(?:<\?xml[^>]{0,200}>\s*)?<(?:!doctype html|html)\b", re.IGNORECASE)


class TextFilesConfig(WholeFiles):
    """Plain text files of any kind; `books_text` is for novels with wrapped lines and chapters."""

    kind: Literal["text_files"] = "text_files"
    paths: tuple[str, ...] = Field(min_length=1)
    """Folders, all of whose files are read, or files: plain or compressed (.gz, .bz2, .xz, .zst), as local glob
    patterns or fsspec URIs."""
    encoding: str = AUTO
    """Encoding of files without a byte order mark, as in `books_text`."""
    max_file_bytes: int = Field(default=64 << 20, gt=0)
    """A longer file (decompressed bytes) is rejected, and never held in memory."""

    _known_encoding = field_validator("encoding")(known_encoding)

    def list_files(self) -> Sequence[SourceFile]:
        return expand_patterns(self.paths, folders=True)

    def documents_of(self, file: SourceFile) -> Iterator[Document | Skipped]:
        """The file as one document; skipped when it is empty."""
        data = read_whole(file, self.max_file_bytes)
        text = clean_text(decode_text(data, self.encoding, self.lang))
        yield self.document(file, file.name, text, {"byte_start": 0, "byte_end": len(data)})


class BooksConfig(WholeFiles):
    """Files that hold one book each."""

    paths: tuple[str, ...] = Field(min_length=1)
    """Files, plain or compressed (.gz, .bz2, .xz, .zst): local glob patterns or fsspec URIs."""
    max_book_bytes: int = Field(default=64 << 20, gt=0)
    """A longer book (decompressed bytes) is rejected, and never held in memory."""

    def book(
        self,
        file: SourceFile,
        parts: Sequence[Sequence[str]],
        *,
        size_bytes: int,
        title: str = "",
        author: str = "",
        lang: str = "",
    ) -> Document | Skipped:
        """The document of a book; Skipped when it has no text.

        Args:
            parts: chapters of paragraphs.
            size_bytes: the file's, decompressed.
            title: where it is not known, the file's name serves: `Eliot_Felix_1866.txt.gz` is `Eliot Felix 1866`.
            lang: where it is not known, the source's.
        """
        text = clean_text(join_chapters(parts), keep_chapters=True)
        meta: dict[str, Any] = {
            "byte_start": 0,
            "byte_end": size_bytes,
            "chapters": sum(1 for part in parts if part),
        }
        if author:
            meta["author"] = clean_text(author)
        named = _PACKING.sub("", file.name.rsplit("/", 1)[-1]).replace("_", " ").strip()
        return self.document(file, file.name, text, meta, title=clean_text(title) or named, lang=lang)


class BooksTextConfig(BooksConfig):
    """Plain-text books."""

    kind: Literal["books_text"] = "books_text"
    encoding: str = AUTO
    """Encoding of files without a byte order mark; such a mark always wins. With `auto`, text that is not UTF-8 is read
    by the Windows code page of `lang` or an older encoding of that language (KOI8-R, Latin-2, Big5, ISO-2022), and text
    that was decoded wrongly before is repaired; a book that none of them makes probable is rejected, with what it may
    be. With a name, a byte that is invalid rejects the book."""
    line_wrap: LineWrap = "auto"
    """Whether lines are wrapped paragraphs to be joined (`joined`), or paragraphs themselves (`kept`). `auto` decides
    for each book, by the sentences that continue on the next line, and keeps the lines of verse, lists and tables
    of contents."""

    _known_encoding = field_validator("encoding")(known_encoding)

    def documents_of(self, file: SourceFile) -> Iterator[Document | Skipped]:
        """The book as one document; skipped when it is empty."""
        data = read_whole(file, self.max_book_bytes)
        text = decode_text(data, self.encoding, self.lang)
        if _HTML.match(text):
            raise UnreadableError("an HTML page; convert it to plain text, or package it as an EPUB")
        frame = take_off_frame(text)
        parts = split_chapters(paragraphs_of(frame.text, self.line_wrap))
        yield self.book(file, parts, size_bytes=len(data), title=frame.title, author=frame.author)


def primary_language(tag: str | None) -> str:
    """ISO 639 code that a language tag such as `de-AT` begins with; "" for anything else."""
    found = _LANGUAGE.match((tag or "").lower())
    return found.group() if found else ""
