"""Documents on disk: Parquet with zstd, written as a stream, read by row group.

One file holds the documents of one shard. Rows keep the order in which their source gave them; a row number
in a shard is how later stages name a document.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from cluster.errors import CorruptArtefactError
from cluster.manifest import Manifest
from cluster.storage import open_artefact
from data_prep.layout import DOCUMENTS, REPAIR
from data_prep.sources.base import Document

ROW_GROUP_BYTES = 8 << 20
"""A row group is closed once its texts fill this many bytes."""
ROW_GROUP_DOCUMENTS = 4096
"""A row group holds at most this many documents."""
_TEXT_COLUMNS = ("doc_id", "source", "uri", "title", "lang", "text")
SCHEMA = pa.schema([(name, pa.string()) for name in (*_TEXT_COLUMNS, "meta")])
_REPEATED_COLUMNS = ["source", "uri", "lang"]
"""Columns whose few values are worth a dictionary."""


def document_files(num_shards: int) -> list[str]:
    """File names of the shards, in order."""
    return [f"documents-{number:05d}-of-{num_shards:05d}.parquet" for number in range(num_shards)]


class DocumentWriter:
    """Appends documents to one Parquet file; holds at most one row group in memory."""

    def __init__(self, path: Path) -> None:
        # Statistics would hold the smallest and largest text of every row group, for nobody to read.
        self._writer = pq.ParquetWriter(
            str(path),
            SCHEMA,
            compression="zstd",
            use_dictionary=_REPEATED_COLUMNS,  # pyright: ignore[reportArgumentType]
            write_statistics=False,
        )
        self._rows: list[tuple[str, ...]] = []
        self._pending_bytes = 0
        self.num_documents = 0
        self.text_bytes = 0
        """UTF-8 bytes of text written so far."""

    def add(self, document: Document) -> None:
        """Append one document.

        Raises:
            UnicodeEncodeError, orjson.JSONEncodeError: a field holds lone surrogates, which UTF-8 has not.
        """
        row = tuple(getattr(document, name) for name in _TEXT_COLUMNS)
        sizes = [len(field.encode("utf-8")) for field in row]
        size = sizes[_TEXT_COLUMNS.index("text")]
        self._rows.append((*row, _dump_meta(document.meta)))
        self._pending_bytes += size
        self.num_documents += 1
        self.text_bytes += size
        if self._pending_bytes >= ROW_GROUP_BYTES or len(self._rows) >= ROW_GROUP_DOCUMENTS:
            self._flush()

    def _flush(self) -> None:
        if not self._rows:
            return
        columns = [pa.array(column, type=pa.string()) for column in zip(*self._rows, strict=True)]
        self._writer.write_table(pa.table(columns, schema=SCHEMA))
        self._rows, self._pending_bytes = [], 0

    def __enter__(self) -> DocumentWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._flush()
        finally:
            self._writer.close()


def _dump_meta(meta: dict[str, Any]) -> str:
    return orjson.dumps(meta, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS).decode()


def read_row_groups(
    path: Path, columns: Iterable[str], rows: np.ndarray | None = None
) -> Iterator[tuple[int, pa.Table]]:
    """(first row number, table) of every row group of a shard, in order.

    Args:
        rows: ascending row numbers in the shard; None takes all. Row groups without any are not read.
    """
    with pq.ParquetFile(str(path)) as file:
        first = 0
        for number in range(file.num_row_groups):
            count = file.metadata.row_group(number).num_rows
            wanted = None if rows is None else _between(rows, first, first + count) - first
            if wanted is None or len(wanted):
                table = file.read_row_group(number, columns=list(columns))
                yield first, table if wanted is None or len(wanted) == count else table.take(wanted)
            first += count


def read_texts(path: Path, rows: np.ndarray | None = None) -> Iterator[tuple[str, str]]:
    """(doc_id, text) of the given rows of a shard, in order; bounded by a row group."""
    for _, table in read_row_groups(path, ("doc_id", "text"), rows):
        yield from zip(table["doc_id"].to_pylist(), table["text"].to_pylist(), strict=True)


def _between(rows: np.ndarray, first: int, last: int) -> np.ndarray:
    start, end = np.searchsorted(rows, [first, last])
    return rows[start:end]


class DocumentStore:
    """The committed documents of a preparation."""

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self.path = path
        self.manifest = manifest
        self.files = [path / entry.path for entry in manifest.files if entry.path.endswith(".parquet")]

    @classmethod
    def open(cls, path: Path, *, verify: bool = True) -> DocumentStore:
        """Open the documents in `path`.

        Args:
            verify: hash every file; otherwise only their sizes are compared.

        Raises:
            CorruptArtefactError: names every damaged file.
        """
        return cls(path, open_artefact(path, kind=DOCUMENTS, deep=verify, repair=REPAIR))

    def read_rows(self, shard: int, rows: np.ndarray | None = None) -> Iterator[Document]:
        """The documents of a shard at the given ascending row numbers (None: all), in order.

        Raises:
            CorruptArtefactError: the file is not readable Parquet.
        """
        path = self.files[shard]
        try:
            for _, table in read_row_groups(path, SCHEMA.names, rows):
                for row in table.to_pylist():
                    yield Document(**(row | {"meta": orjson.loads(row["meta"])}))
        except (pa.ArrowInvalid, OSError) as error:
            raise CorruptArtefactError(f"{path} cannot be read: {error}", next_step=REPAIR) from error

    def read_row(self, shard: int, row: int) -> Document:
        """One document."""
        found = list(self.read_rows(shard, np.array([row], dtype=np.int64)))
        assert found, f"{self.files[shard]} has no row {row}"
        return found[0]
