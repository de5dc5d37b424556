"""Folders of plain text files, one document per file, its lines as they are."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Sequence
from typing import Literal

from pydantic import Field, field_validator

from cluster.artefacts.shard_records import Reject
from data_prep.document import Document
from data_prep.sources.base import FilePart, Skipped, SourceConfig, SourceFile, expand_patterns, whole_file
from data_prep.sources.books import read_whole
from data_prep.text import clean_text
from data_prep.text.encodings import AUTO, DecodingError, decode_text, known_encoding


class TextFilesConfig(SourceConfig):
    """Plain text files of any kind; for novels, whose lines are wrapped and whose chapters count, see `books_text`."""

    kind: Literal["text_files"] = "text_files"
    paths: tuple[str, ...] = Field(min_length=1)
    """Folders, all of whose files are read, or files: plain or compressed (.gz, .bz2, .xz, .zst), as local glob
    patterns or fsspec URIs."""
    encoding: str = AUTO
    """Encoding of files without a byte order mark, as in `books_text`."""
    max_file_bytes: int = Field(default=64 << 20, gt=0)
    """A longer file (decompressed bytes) is rejected, and never held in memory."""

    _known_encoding = field_validator("encoding")(known_encoding)


def list_files(config: TextFilesConfig) -> Sequence[SourceFile]:
    """All files, sorted by name. MissingInputError when a path or pattern matches nothing."""
    local = [os.path.expanduser(path.removeprefix("file://")) for path in config.paths]
    return expand_patterns(
        os.path.join(glob.escape(path), "**", "*") if os.path.isdir(path) else path for path in local
    )


split = whole_file


def read(config: TextFilesConfig, part: FilePart) -> Iterator[Document | Reject | Skipped]:
    """The file as one document; skipped when it is empty. A file that is not text is rejected as a whole."""
    file = part.file
    data = read_whole(file, config.max_file_bytes)
    if isinstance(data, Reject):
        yield data
        return
    try:
        text = clean_text(decode_text(data, config.encoding, config.lang))
    except DecodingError as error:
        yield Reject(file.name, error.offset, error.reason)
        return
    if not text:
        yield Skipped("no_text")
        return
    yield Document(
        doc_id=f"{config.name}:{file.name}",
        source=config.name,
        uri=file.name,
        title="",
        lang=config.lang,
        text=text,
        meta={"byte_start": 0, "byte_end": len(data)},
    )
