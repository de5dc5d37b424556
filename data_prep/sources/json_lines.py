"""JSON lines: one record, and so one document, per line."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import orjson
from pydantic import Field

from cluster.artefacts.shard_records import Reject
from data_prep.document import Document
from data_prep.sources.base import FilePart, Skipped, SourceFile, list_paths, plain_parts
from data_prep.sources.records import RecordsConfig, document_of
from data_prep.sources.streams import HEAD_BYTES, Gap, open_file, read_chunks, to_utf8

# -- the lines of a file -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that cannot be given out."""

    start: int
    reason: str


def read_lines(part: FilePart, max_line_bytes: int) -> Iterator[tuple[int, bytes] | BadLine]:
    """(offset, line without its line feed) of every line that begins in the part, in order.

    Offsets are of the decompressed file, for UTF-16 of that as UTF-8. Of a compressed file, the part must
    begin at its start.

    Args:
        max_line_bytes: a longer line is bad, and never held in memory.
    """
    # The byte before the part shows whether the part's first byte begins a line.
    before = part.start - 1 if part.start else 0
    chunks = read_chunks(part.file.path, start=before)
    chunks = chunks if before else to_utf8(chunks)
    return split_lines(chunks, max_line_bytes, before, in_line=bool(part.start), end=part.end)


def split_lines(
    chunks: Iterable[bytes | Gap],
    max_line_bytes: int,
    offset: int,
    *,
    in_line: bool = False,
    end: int | None = None,
) -> Iterator[tuple[int, bytes] | BadLine]:
    """Like `read_lines`, of any chunks, up to the line that begins at or after byte `end`.

    Args:
        offset: byte at which the chunks begin.
        in_line: whether they begin in a line, which is left out.
    """
    pending, skipping = _Pending(), in_line
    for chunk in chunks:
        if isinstance(chunk, Gap):
            yield BadLine(offset, chunk.reason)
            # What follows a gap is no whole line; offsets go on from the bytes that could be read.
            offset, pending, skipping = offset + pending.size, _Pending(), True
            continue
        *lines, rest = chunk.split(b"\n")
        for line in lines:
            length = pending.size + len(line)
            if not skipping:
                if end is not None and offset >= end:
                    return
                if length > max_line_bytes:
                    yield _too_long(offset, max_line_bytes)
                else:
                    yield offset, pending.whole(line)
            if pending.size:
                pending = _Pending()
            offset, skipping = offset + length + 1, False
        if end is not None and offset >= end:
            return
        if skipping:
            offset += len(rest)
            continue
        pending.add(rest)
        if pending.size > max_line_bytes:
            yield _too_long(offset, max_line_bytes)
            offset, pending, skipping = offset + pending.size, _Pending(), True
    if pending.size:
        yield offset, pending.whole(b"")


class _Pending:
    """The beginning of a line whose end is still to come, in pieces: joining each as it comes takes quadratic time."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self.size = 0

    def add(self, piece: bytes) -> None:
        if piece:
            self._pieces.append(piece)
            self.size += len(piece)

    def whole(self, rest: bytes) -> bytes:
        return b"".join([*self._pieces, rest]) if self.size else rest


def _too_long(offset: int, max_line_bytes: int) -> BadLine:
    return BadLine(offset, f"a line longer than the limit of {max_line_bytes} bytes")


MAX_LINE_BYTES = 64 << 20
_BLANK = codecs.BOM_UTF8 + b" \t\r\n"
_OVER_LINES = (
    "a JSON list or object over several lines, not one record a line; `jq -c '.[]' FILE` writes a list as lines,"
    " `jq -c . FILE` objects"
)


class JsonLinesConfig(RecordsConfig):
    """Files of JSON lines."""

    kind: Literal["json_lines"] = "json_lines"
    paths: tuple[str, ...] = Field(min_length=1)
    """Files, plain, .gz, .zst, .xz or .bz2: local glob patterns or fsspec URIs."""
    max_line_bytes: int = Field(default=MAX_LINE_BYTES, gt=0)
    """A longer line is rejected, and never held in memory."""


list_files = list_paths


def split(config: RecordsConfig, file: SourceFile, size_bytes: int, part_bytes: int) -> list[FilePart]:
    """The file in even parts; one part where it is compressed, or begins with a list in place of a record."""
    with open_file(file.path) as stored:
        is_list = stored.read(HEAD_BYTES).lstrip(_BLANK).startswith(b"[")
    return [FilePart(file)] if is_list else plain_parts(config, file, size_bytes, part_bytes)


def read(config: JsonLinesConfig, part: FilePart) -> Iterator[Document | Reject | Skipped]:
    """The records of a part in order; a line that is no record of text is rejected, and only that line."""
    return read_records(config, part, config.max_line_bytes)


def read_records(
    config: RecordsConfig, part: FilePart, max_line_bytes: int
) -> Iterator[Document | Reject | Skipped]:
    """The documents of a part of a file of JSON lines. Offsets are of the decompressed file."""
    file = part.file
    is_first = part.start == 0
    for item in read_lines(part, max_line_bytes):
        if isinstance(item, BadLine):
            yield Reject(file.name, item.start, item.reason)
            continue
        start, line = item
        try:
            record = parse_json(line)
        except ValueError as error:
            if is_first and (line.lstrip(_BLANK).startswith(b"[") or line.strip(_BLANK) == b"{"):
                yield Reject(file.name, start, _OVER_LINES)
                return
            if line.strip():
                yield Reject(file.name, start, f"no JSON: {error}")
                is_first = False
            continue
        is_first = False
        meta = {"byte_start": start, "byte_end": start + len(line)}
        yield document_of(config, file, record, start, meta)


def parse_json(line: bytes) -> Any:
    """The value of a line.

    Python writes NaN and unpaired surrogates, which are no JSON, and reads them again.

    Raises:
        ValueError: it is no JSON, or nested too deeply.
    """
    try:
        return orjson.loads(line.removeprefix(codecs.BOM_UTF8))
    except orjson.JSONDecodeError as error:
        try:
            return json.loads(line.removeprefix(codecs.BOM_UTF8))
        except RecursionError:
            raise ValueError("nested too deeply") from None
        except ValueError:
            raise error from None
