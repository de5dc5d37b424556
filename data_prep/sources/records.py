"""Records with named fields to documents: JSON lines here, and the rows of Parquet files and Hugging Face data sets."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

import orjson
from pydantic import Field

from data_prep.document import Document
from data_prep.sources.base import NO_TEXT, Item, Skipped, SourceConfig, SourceFile
from data_prep.sources.streams import HEAD_BYTES, Gap, open_file, read_chunks, storage_of, to_utf8
from data_prep.text import clean_text

MAX_LINE_BYTES = 64 << 20
MISSING = object()
"""The value of a field that does not exist."""
_MAX_LANGUAGE_CHARACTERS = 35
"""The longest tag that RFC 5646 (section 4.4.1) asks programs to hold."""
_FIRST_INEXACT_NUMBER = 2.0**53
_BLANK = codecs.BOM_UTF8 + b" \t\r\n"
_OVER_LINES = (
    "a JSON list or object over several lines, not one record a line; `jq -c '.[]' FILE` writes a list as lines,"
    " `jq -c . FILE` objects"
)


class RecordsConfig(SourceConfig):
    """Fields of a record that make a document. A dot leads into a field: `metadata.title`."""

    text_field: str = Field(default="text", min_length=1)
    """The text. A record is rejected if it is missing or not a string, and skipped if it is null or empty."""
    id_field: str | None = Field(default=None, min_length=1)
    """A string or number that should be unique in the source (see `repeated_ids`); without it, file and place
    in it name a document."""
    title_field: str | None = Field(default=None, min_length=1)
    """The title; records without it have none."""
    lang_field: str | None = Field(default=None, min_length=1)
    """ISO 639-1 code; records without it have the source's `lang`."""

    def document_of(
        self, file: SourceFile, record: Any, place: int, meta: dict[str, Any]
    ) -> Document | Gap | Skipped:
        """The document of a record; Skipped when its text is null or empty.

        Args:
            place: its position in the file, in bytes or rows; its name where it has no other.
            meta: with `byte_start`, the offset of a Gap.
        """
        text = value_at(record, self.text_field)
        if text is None:
            return NO_TEXT
        if not isinstance(text, str):
            return Gap(meta["byte_start"], _no_text(record, self.text_field, text))
        given, title, lang = (
            value_at(record, field) if field else None
            for field in (self.id_field, self.title_field, self.lang_field)
        )
        # pandas turns whole numbers into fractions where some are missing.
        if isinstance(given, float) and given.is_integer() and abs(given) < _FIRST_INEXACT_NUMBER:
            given = int(given)
        is_name = isinstance(given, str | int) and not isinstance(given, bool) and given != ""
        return self.document(
            file,
            str(given) if is_name else f"{file.name}:{place}",
            clean_text(text),
            meta,
            title=clean_text(title) if isinstance(title, str) else "",
            lang=lang[:_MAX_LANGUAGE_CHARACTERS] if isinstance(lang, str) else "",
        )


def value_at(record: Any, field: str) -> Any:
    """The value of a field, which a dotted name finds in nested records; MISSING where there is none.

    A field of a null record is null. Bytes are text that is not UTF-8, and have no fields.
    """
    if isinstance(record, bytes):
        return record
    if not isinstance(record, Mapping):
        return MISSING
    if field in record:
        return record[field]
    first, dot, rest = field.partition(".")
    if not dot or first not in record:
        return MISSING
    return None if record[first] is None else value_at(record[first], rest)


def _no_text(record: Any, field: str, value: Any) -> str:
    if isinstance(record, list):
        return "a list in place of a record; `jq -c '.[]' FILE` writes its records as lines"
    if not isinstance(record, Mapping):
        return f"a record must be an object with fields, not {type(record).__name__}"
    if isinstance(value, bytes):
        wrong = len(value)
        try:
            value.decode()
        except UnicodeDecodeError as error:
            wrong = error.start
        return f"invalid UTF-8 in field {field!r}, at its byte {wrong}"
    if value is not MISSING:
        return f"field {field!r} holds no string but {type(value).__name__}"
    return f"no field {field!r}; there are {', '.join(sorted(map(str, record))[:20])}"


# -- JSON lines ----------------------------------------------------------------------------------------------


class JsonLinesConfig(RecordsConfig):
    """Files of JSON lines."""

    kind: Literal["json_lines"] = "json_lines"
    paths: tuple[str, ...] = Field(min_length=1)
    """Files, plain, .gz, .zst, .xz or .bz2: local glob patterns or fsspec URIs."""
    max_line_bytes: int = Field(default=MAX_LINE_BYTES, gt=0)
    """A longer line is rejected, and never held in memory."""

    def is_divisible(self, file: SourceFile) -> bool:
        return holds_lines(file)

    def read(self, part: SourceFile) -> Iterator[Item]:
        """The records of a part in order; a line that is no record of text is rejected, and only that line."""
        return read_json(self, part, self.max_line_bytes)


def holds_lines(file: SourceFile) -> bool:
    """Whether the file is not compressed, and does not begin with a list in place of a record."""
    with open_file(file.path) as stored:
        is_list = stored.read(HEAD_BYTES).lstrip(_BLANK).startswith(b"[")
    return not is_list and storage_of(file.path) == "plain"


def read_json(config: RecordsConfig, part: SourceFile, max_line_bytes: int) -> Iterator[Item]:
    """The documents of a part of a file of JSON lines. Offsets are of the decompressed file."""
    lines = read_lines(part, max_line_bytes)
    for item in parse_lines(lines, is_first=part.start == 0):
        if isinstance(item, Gap):
            yield item
        else:
            start, end, record = item
            yield config.document_of(part, record, start, {"byte_start": start, "byte_end": end})


def parse_lines(
    lines: Iterable[tuple[int, bytes] | Gap], *, is_first: bool = False
) -> Iterator[tuple[int, int, Any] | Gap]:
    """(first byte, byte after the last, value) of every line that is not blank; a Gap where it is no JSON.

    Args:
        is_first: whether the lines begin with the first one of a file. Where that shows that the file holds no JSON
            lines but a list or object over several, it is one Gap.
    """
    for item in lines:
        if isinstance(item, Gap):
            yield item
            continue
        start, line = item
        try:
            value = _parse(line)
        except ValueError as error:
            if is_first and (line.lstrip(_BLANK).startswith(b"[") or line.strip(_BLANK) == b"{"):
                yield Gap(start, _OVER_LINES)
                return
            if line.strip():
                yield Gap(start, f"no JSON: {error}")
                is_first = False
            continue
        is_first = False
        yield start, start + len(line), value


def _parse(line: bytes) -> Any:
    """The value of a line. Python writes NaN and unpaired surrogates, which are no JSON, and reads them again.

    Raises:
        ValueError: it is no JSON, or nested too deeply.
    """
    try:
        return orjson.loads(line.removeprefix(codecs.BOM_UTF8))
    except orjson.JSONDecodeError as error:
        try:
            # Bytes would be decoded with lone surrogates, which no document may hold.
            return json.loads(line.removeprefix(codecs.BOM_UTF8).decode())
        except UnicodeDecodeError as broken:
            raise ValueError(f"invalid UTF-8 at its byte {broken.start}") from None
        except RecursionError:
            raise ValueError("nested too deeply") from None
        except ValueError:
            raise error from None


def read_lines(part: SourceFile, max_line_bytes: int) -> Iterator[tuple[int, bytes] | Gap]:
    """(offset, line without its line feed) of every line that begins in the part, in order.

    Offsets are of the decompressed file, for UTF-16 of that as UTF-8. Of a compressed file, the part must
    begin at its start.

    Args:
        max_line_bytes: a longer line is rejected, and never held in memory.
    """
    # The byte before the part shows whether the part's first byte begins a line.
    before = part.start - 1 if part.start else 0
    chunks = read_chunks(part.path, start=before)
    chunks = chunks if before else to_utf8(chunks)
    return split_lines(chunks, max_line_bytes, before, in_line=bool(part.start), end=part.end)


def split_lines(
    chunks: Iterable[bytes | Gap],
    max_line_bytes: int,
    offset: int,
    *,
    in_line: bool = False,
    end: int | None = None,
) -> Iterator[tuple[int, bytes] | Gap]:
    """Like `read_lines`, of any chunks, up to the line that begins at or after byte `end`.

    Args:
        offset: first byte of the chunks.
        in_line: whether they begin inside a line, which is then skipped.
    """
    too_long = f"a line longer than the limit of {max_line_bytes} bytes"
    # Pieces of an unfinished line; joining on every chunk would be quadratic.
    pieces, size, skipping = list[bytes](), 0, in_line
    for chunk in chunks:
        if isinstance(chunk, Gap):
            yield Gap(offset, chunk.reason)
            # The rest of the line after a gap is not a whole line; offsets continue from the readable bytes.
            offset, pieces, size, skipping = offset + size, [], 0, True
            continue
        *lines, rest = chunk.split(b"\n")
        for line in lines:
            length = size + len(line)
            if not skipping:
                if end is not None and offset >= end:
                    return
                if length > max_line_bytes:
                    yield Gap(offset, too_long)
                else:
                    yield offset, b"".join([*pieces, line]) if size else line
            if size:
                pieces, size = [], 0
            offset, skipping = offset + length + 1, False
        if end is not None and offset >= end:
            return
        if skipping:
            offset += len(rest)
        elif rest:
            pieces.append(rest)
            size += len(rest)
            if size > max_line_bytes:
                yield Gap(offset, too_long)
                offset, pieces, size, skipping = offset + size, [], 0, True
    if size:
        yield offset, b"".join(pieces)
