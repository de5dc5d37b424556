"""Settings of books in all formats: one file is one document, read whole within a limit."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from pydantic import Field

from cluster.artefacts.shard_records import Reject
from data_prep.document import Document
from data_prep.sources.base import Skipped, SourceConfig, SourceFile
from data_prep.sources.streams import Gap, read_chunks
from data_prep.text import clean_text
from data_prep.text.books import join_chapters

_PACKING = re.compile(r"(\.(?:txt|text|xml|tei|epub))?(\.(?:gz|bz2|xz|zst))?$", re.IGNORECASE)

_LANGUAGE = re.compile(r"[a-z]{2,3}(?=-|$)")


class BooksConfig(SourceConfig):
    """Files that hold one book each."""

    paths: tuple[str, ...] = Field(min_length=1)
    """Files, plain or compressed (.gz, .bz2, .xz, .zst): local glob patterns or fsspec URIs."""
    max_book_bytes: int = Field(default=64 << 20, gt=0)
    """A longer book (decompressed bytes) is rejected, and never held in memory."""


def read_whole(file: SourceFile, max_bytes: int) -> bytes | Reject:
    """The decompressed bytes of a file."""
    data = bytearray()
    for chunk in read_chunks(file.path):
        if isinstance(chunk, Gap):
            return Reject(file.name, len(data), chunk.reason)
        data += chunk
        if len(data) > max_bytes:
            return Reject(file.name, 0, f"longer than the limit of {max_bytes} bytes")
    return bytes(data)


def book(
    config: SourceConfig,
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
        title: where it is not known, the file's name serves.
        lang: where it is not known, the source's.
    """
    text = clean_text(join_chapters(parts), keep_chapters=True)
    if not text:
        return Skipped("no_text")
    meta: dict[str, Any] = {
        "byte_start": 0,
        "byte_end": size_bytes,
        "chapters": sum(1 for part in parts if part),
    }
    if author:
        meta["author"] = clean_text(author)
    return Document(
        doc_id=f"{config.name}:{file.name}",
        source=config.name,
        uri=file.name,
        title=clean_text(title) or _title_from(file.name),
        lang=lang or config.lang,
        text=text,
        meta=meta,
    )


def primary_language(tag: str | None) -> str:
    """ISO 639 code that a language tag such as `de-AT` begins with; "" for anything else."""
    found = _LANGUAGE.match((tag or "").lower())
    return found.group() if found else ""


def _title_from(name: str) -> str:
    """`novels/Eliot_Felix_1866.txt.gz` is titled `Eliot Felix 1866`."""
    return _PACKING.sub("", name.rsplit("/", 1)[-1]).replace("_", " ").strip()
