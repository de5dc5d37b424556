"""Parquet files: one record, and so one document, per row."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field

from cluster.artefacts.errors import ConfigError
from data_prep.sources.base import Item, SourceFile
from data_prep.sources.records import RecordsConfig
from data_prep.sources.streams import Gap, open_file

BATCH_ROWS = 512
"""Rows held as Python objects at a time."""
_BUFFER_BYTES = 1 << 20
_LOOKED_AT_FILES = 64
"""Most files whose columns are looked at before a preparation starts."""
DAMAGE = (pa.ArrowException, OSError, ValueError, EOFError)
"""Errors of pyarrow on files that are damaged, or of a format it does not know."""


class ParquetConfig(RecordsConfig):
    """Parquet files."""

    kind: Literal["parquet"] = "parquet"
    paths: tuple[str, ...] = Field(min_length=1)
    """Parquet files: local glob patterns or fsspec URIs."""

    def list_files(self) -> Sequence[SourceFile]:
        return require_columns(self, super().list_files())

    def split_file(self, file: SourceFile, size_bytes: int, part_bytes: int) -> list[SourceFile]:
        return split_row_groups(file, size_bytes, part_bytes)

    def read(self, part: SourceFile) -> Iterator[Item]:
        return read_rows(self, part)


def require_columns(config: RecordsConfig, files: Sequence[SourceFile]) -> Sequence[SourceFile]:
    """The files, if every column that the settings name is in one of them, as far as their footers are looked at.

    Raises:
        ConfigError: a column is in none.
    """
    wanted, there = _named_columns(config), set[str]()
    for file in itertools.islice(files, _LOOKED_AT_FILES):
        with open_file(file.path) as stored:
            try:
                schema = _open(stored).schema_arrow
            except DAMAGE:
                continue
        there.update(schema.names)
        wanted = [field for field in wanted if _column_of(schema, field) is None]
        if not wanted:
            return files
    if there and len(files) <= _LOOKED_AT_FILES:
        raise _no_column(f"The files of the source {config.name} have", wanted[0], sorted(there))
    return files


def split_row_groups(file: SourceFile, size_bytes: int, part_bytes: int) -> list[SourceFile]:
    """Parts of whole row groups; the file as one part when its footer cannot be read."""
    with open_file(file.path) as stored:
        try:
            starts = [_bounds(group)[0] for group in _row_groups(_open(stored))]
        except DAMAGE:
            return [file]
    cuts = [0]
    for start, end in zip(starts, [*starts[1:], size_bytes], strict=True):
        if start > starts[0] and end - cuts[-1] > part_bytes:
            cuts.append(start)
    return [replace(file, start=start, end=end) for start, end in zip(cuts, [*cuts[1:], None], strict=True)]


def read_rows(config: RecordsConfig, part: SourceFile) -> Iterator[Item]:
    """The rows of the row groups whose first page lies in the part, in order.

    A damaged row group is one reject, at its first byte, after the rows that could be read of it; so is a damaged
    file. Rows are counted from the file's first, from 0. `byte_start` and `byte_end` of a document are its row group's.

    Raises:
        ConfigError: the file has no column `text_field`.
    """
    with open_file(part.path) as stored:
        try:
            file = _open(stored)
            schema = file.schema_arrow
        except DAMAGE as error:
            yield Gap(part.start, f"not a readable Parquet file: {_first_line(error)}")
            return
        columns = present_columns(config, part, schema)
        first_row = 0
        for number, group in enumerate(_row_groups(file)):
            start, end = _bounds(group)
            if start >= part.start and (part.end is None or start < part.end):
                row = first_row
                try:
                    batches = file.iter_batches(BATCH_ROWS, row_groups=[number], columns=columns)
                    for item in documents_of(config, part, batches, first_row, start, end):
                        yield (
                            replace(item, reason=f"row group {number}, {item.reason}")
                            if isinstance(item, Gap)
                            else item
                        )
                        row += 1
                except DAMAGE as error:
                    reason = f"row group {number} is damaged, from row {row} on: {_first_line(error)}"
                    yield Gap(start, reason)
            first_row += group.num_rows


def documents_of(
    config: RecordsConfig,
    file: SourceFile,
    batches: Iterator[pa.RecordBatch],
    first_row: int,
    start: int,
    end: int,
) -> Iterator[Item]:
    """The documents of Arrow batches that come from the bytes `start` to `end` of a file; rejects name their row."""
    row = first_row
    for batch in batches:
        columns = [_values(column) for column in batch.columns]
        names = batch.schema.names
        for values in zip(*columns, strict=True):
            meta = {"byte_start": start, "byte_end": end, "row": row}
            item = config.document_of(file, dict(zip(names, values, strict=True)), row, meta)
            yield replace(item, reason=f"row {row}: {item.reason}") if isinstance(item, Gap) else item
            row += 1


def present_columns(config: RecordsConfig, file: SourceFile, schema: pa.Schema) -> list[str]:
    """The columns to read of those that a table has; only the text has to be there.

    Raises:
        ConfigError: it is not.
    """
    found = [_column_of(schema, field) for field in _named_columns(config)]
    if found[0] is None:
        raise _no_column(f"{file.path} has", config.text_field, schema.names)
    return [column for column in dict.fromkeys(found) if column is not None]


def _named_columns(config: RecordsConfig) -> list[str]:
    named = (config.text_field, config.id_field, config.title_field, config.lang_field)
    return [field for field in dict.fromkeys(named) if field]


def _no_column(subject: str, field: str, there: Sequence[str]) -> ConfigError:
    return ConfigError(
        f"{subject} no column {field!r}; there are {', '.join(there[:20])}.",
        next_step="correct the fields that the source names, such as `text_field`, or let it name other files",
    )


def _column_of(fields: pa.Schema | pa.StructType, name: str) -> str | None:
    """The column to read for a field: its dotted name, or the name of an enclosing record that is always null."""
    if name in fields.names:
        return name
    first, dot, rest = name.partition(".")
    inner = fields.field(first).type if dot and first in fields.names else None
    if inner is None or pa.types.is_null(inner):
        return first if inner is not None else None
    found = _column_of(inner, rest) if pa.types.is_struct(inner) else None
    return None if found is None else f"{first}.{found}"


def _open(stored: Any) -> pq.ParquetFile:
    return pq.ParquetFile(
        stored, buffer_size=_BUFFER_BYTES, pre_buffer=False, page_checksum_verification=True
    )


def _row_groups(file: pq.ParquetFile) -> list[Any]:
    return [file.metadata.row_group(number) for number in range(file.num_row_groups)]


def _bounds(group: Any) -> tuple[int, int]:
    """The byte of a row group's first page, and the byte after its columns."""
    chunks = [group.column(number) for number in range(group.num_columns)]
    starts = [
        min(chunk.data_page_offset, chunk.dictionary_page_offset or chunk.data_page_offset)
        for chunk in chunks
    ]
    start = min(starts, default=0)
    return start, start + sum(chunk.total_compressed_size for chunk in chunks)


def _values(column: pa.Array) -> list[Any]:
    """Python values; the bytes that are wrong where text is no valid UTF-8."""
    try:
        if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
            column = column.cast(pa.large_string())
        return column.to_pylist()
    except (pa.ArrowInvalid, UnicodeDecodeError):
        values = []
        for scalar in column:
            try:
                value = scalar.as_py()
                values.append(value.decode() if isinstance(value, bytes) else value)
            except UnicodeDecodeError as error:
                values.append(error.object)
        return values


def _first_line(error: BaseException) -> str:
    return str(error).split("\n", 1)[0][:200]
