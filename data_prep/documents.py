"""Documents on disk: Parquet with zstd, written as a stream, read by row group.

One file holds the documents of one shard. Rows keep the order of their source; later stages
identify a document by its row in the shard.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from cluster.artefacts.errors import CorruptArtefactError
from cluster.artefacts.places import Place
from cluster.artefacts.reading import inside
from cluster.artefacts.storage import contents_of
from cluster.copies import local_copy, manifest_at
from data_prep.document import Document, named_by_place
from data_prep.layout import DOCUMENTS, REPAIR, SELECTION_FILES
from data_prep.ragged import string_offsets
from data_prep.selection import Selection, edit_texts, load_selection

ROW_GROUP_BYTES = 8 << 20
"""A row group is closed once its texts fill this many bytes."""
ROW_GROUP_DOCUMENTS = 4096
"""A row group holds at most this many documents."""
_TEXT_COLUMNS = ("doc_id", "source", "uri", "title", "lang", "text")
SCHEMA = pa.schema([(name, pa.string()) for name in (*_TEXT_COLUMNS, "meta")])
_REPEATED_COLUMNS = ["source", "uri", "lang"]
"""Columns whose few values are worth a dictionary."""


class DocumentWriter(AbstractContextManager["DocumentWriter"]):
    """Appends documents to one Parquet file; holds at most one row group in memory."""

    def __init__(self, path: Path) -> None:
        # Statistics would hold the smallest and largest text of every row group, which no reader uses.
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
        described = (document.doc_id, document.source, document.uri, document.title, document.lang)
        "".join(described).encode()
        # Python knows at once what is ASCII.
        text = document.text
        size = len(text) if text.isascii() else len(text.encode())
        meta = orjson.dumps(document.meta, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS).decode()
        self._rows.append((*described, text, meta))
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

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._flush()
        finally:
            self._writer.close()


def read_row_groups(path: Path, columns: Iterable[str]) -> Iterator[tuple[int, pa.Table]]:
    """(first row number, table) of every row group of a shard, in order."""
    with pq.ParquetFile(str(path)) as file:
        first = 0
        for number in range(file.num_row_groups):
            yield first, file.read_row_group(number, columns=list(columns))
            first += file.metadata.row_group(number).num_rows


def read_selected(path: Path, columns: Iterable[str], selection: Selection) -> Iterator[pa.Table]:
    """The selected rows of a shard, in order, a row group at a time; `text` without the removed spans.

    Row groups without any selected row are not read. A `doc_id` that an earlier document has is followed by the place
    of its own record.
    """
    columns = list(columns)
    with pq.ParquetFile(str(path)) as file:
        first = 0
        for number in range(file.num_row_groups):
            count = file.metadata.row_group(number).num_rows
            own = selection.between(first, first + count)
            if len(own):
                repeats = np.flatnonzero(np.isin(own.rows, own.repeated_ids)) if "doc_id" in columns else ()
                place = ("uri", "meta") if len(repeats) else ()
                table = file.read_row_group(number, columns=list(dict.fromkeys((*columns, *place))))
                if len(own) < table.num_rows:
                    table = table.take(pa.array(own.rows - first))
                if len(own.spans.values) and "text" in columns:
                    table = _with_column(table, "text", edit_texts(one_chunk(table["text"]), own))
                if len(repeats):
                    names = table["doc_id"].to_pylist()
                    for row in map(int, repeats):
                        uri, meta = table["uri"][row].as_py(), orjson.loads(table["meta"][row].as_py())
                        names[row] = named_by_place(names[row], uri, meta)
                    table = _with_column(table, "doc_id", pa.array(names, type=pa.string())).select(columns)
                yield table
            first += count


def _with_column(table: pa.Table, name: str, values: pa.Array) -> pa.Table:
    return table.set_column(table.column_names.index(name), name, values)


def one_chunk(column: pa.ChunkedArray) -> pa.Array:
    """The column as one array."""
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)


def text_bytes_by(labels: pa.Array, texts: pa.Array) -> dict[str, int]:
    """UTF-8 bytes of the texts under each label, such as their language."""
    if not len(texts):
        return {}
    encoded = labels.dictionary_encode()
    totals = np.bincount(encoded.indices.to_numpy(), weights=np.diff(string_offsets(texts)))
    return {name: int(total) for name, total in zip(encoded.dictionary.to_pylist(), totals, strict=True)}


class DocumentStore:
    """The committed documents of a preparation, and what a later stage selected of them."""

    def __init__(self, documents: Place, selections: Place) -> None:
        """Find the shards of artefacts; those at a URI are copied to this machine when they are read.

        Args:
            documents: place of the documents.
            selections: place of the artefact that decided which of them are kept.

        Raises:
            CorruptArtefactError: there are no documents.
        """
        manifest = manifest_at(documents)
        if manifest is None:
            raise CorruptArtefactError(f"There are no documents at {documents}.", next_step=REPAIR)
        self._documents, self._selections = documents, selections
        self._files = [entry.path for entry in manifest.files if entry.path.endswith(".parquet")]

    @property
    def num_shards(self) -> int:
        """How many files hold the documents."""
        return len(self._files)

    def file(self, shard: int) -> Path:
        """The file of a shard on this machine."""
        name = self._files[shard]
        return inside(local_copy(self._documents, kind=DOCUMENTS, only=[name]), name)

    def selection(self, shard: int) -> Selection:
        """What is kept of a shard.

        Raises:
            CorruptArtefactError: the file is missing or unreadable.
        """
        name = SELECTION_FILES.file(shard, self.num_shards)
        return load_selection(inside(local_copy(self._selections, only=[name]), name))

    def read(self, shard: int, selection: Selection | None = None) -> Iterator[Document]:
        """The selected documents of a shard, in order, their texts without the removed spans.

        Args:
            selection: another one than `selection(shard)`.

        Raises:
            CorruptArtefactError: the file is not readable Parquet.
        """
        path = self.file(shard)
        selection = self.selection(shard) if selection is None else selection
        with contents_of(path, next_step=REPAIR):
            for table in read_selected(path, SCHEMA.names, selection):
                for row in table.to_pylist():
                    yield Document(**(row | {"meta": orjson.loads(row["meta"])}))
