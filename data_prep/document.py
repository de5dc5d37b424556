"""One document: the output of every source and the input of every later step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Document:
    """One document of a corpus; a row of a documents artefact."""

    doc_id: str
    """Id given by its source, equal on every machine, such as `wikipedia:12`. Should an earlier document of the
    corpus have the same, it is read as `wikipedia:12 @ dump.xml:4711`; see `repeated_ids.py`."""
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
    read in parts, `stream_start` is the byte of the stored file at which the compressed stream (bzip2 stream, gzip
    member) begins, and `byte_start` counts from the first decompressed byte of that stream."""
