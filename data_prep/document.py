"""One document: the output of every source and the input of every later step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Document:
    """One document of a corpus; a row of a documents artefact."""

    doc_id: str
    """Id given by its source, equal on every machine, such as `wikipedia:12`. Should an earlier document of the
    corpus have the same, it is read as `wikipedia:12 @ dump.xml:4711`; see `named_by_place`."""
    source: str
    """The source's name in the configuration."""
    uri: str
    """The file it came from, relative to the source: the same on every machine."""
    title: str
    lang: str
    """ISO 639-1 code."""
    text: str
    """Paragraphs end with a line break, sections with a blank line, chapters of a book with two."""
    meta: dict[str, Any] = field(default_factory=dict)
    """At least `byte_start` and `byte_end`: where it lies in the (decompressed) file. Where a compressed file is
    read in parts, `stream_start` is the first byte of the compressed stream (bzip2 stream, gzip member) in the stored
    file, and `byte_start` counts from the first decompressed byte of that stream."""


MARK = " @ "
"""Between a repeated id and the place. An id that a record itself gives with this in it always gets its place, so that
no document can have the name of another."""


def named_by_place(doc_id: str, uri: str, meta: Mapping[str, Any]) -> str:
    """`wiki:12 @ dump.xml:4711`: the id with the file and the first byte (or row) of the document's record."""
    place = [str(meta[key]) for key in ("stream_start", "byte_start", "row") if key in meta]
    return f"{doc_id}{MARK}{uri.replace(MARK, '%20@%20')}:{'+'.join(place)}"
