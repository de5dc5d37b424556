"""Books as plain text, one document per file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal

from pydantic import field_validator

from cluster.artefacts.shard_records import Reject
from data_prep.document import Document
from data_prep.sources.base import FilePart, Skipped, list_paths, whole_file
from data_prep.sources.books import BooksConfig, book, read_whole
from data_prep.text.books import split_chapters, take_off_frame
from data_prep.text.encodings import AUTO, DecodingError, decode_text, known_encoding
from data_prep.text.wrapping import LineWrap, paragraphs_of

_HTML = re.compile(r"\s*(?:<\?xml[^>]{0,200}>\s*)?<(?:!doctype html|html)\b", re.IGNORECASE)


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
    for book, by the sentences that go on from line to line, and keeps the lines of verse, lists and tables of
contents."""
    _known_encoding = field_validator("encoding")(known_encoding)


list_files, split = list_paths, whole_file


def read(config: BooksTextConfig, part: FilePart) -> Iterator[Document | Reject | Skipped]:
    """The book as one document; skipped when it is empty. A file that is not text is rejected as a whole."""
    file = part.file
    data = read_whole(file, config.max_book_bytes)
    if isinstance(data, Reject):
        yield data
        return
    try:
        text = decode_text(data, config.encoding, config.lang)
    except DecodingError as error:
        yield Reject(file.name, error.offset, error.reason)
        return
    if _HTML.match(text):
        yield Reject(file.name, 0, "an HTML page; convert it to plain text, or package it as an EPUB")
        return
    frame = take_off_frame(text)
    parts = split_chapters(paragraphs_of(frame.text, config.line_wrap))
    yield book(config, file, parts, size_bytes=len(data), title=frame.title, author=frame.author)
