"""The documents of a shard that remain after the earlier methods."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from data_prep.dedup.records import read_documents, rows_of
from data_prep.documents import one_chunk, read_selected
from data_prep.selection import Selection, load_selection


@dataclass(frozen=True, slots=True)
class Survivors:
    """A document shard, and where the decisions about it lie."""

    documents: Path
    """The document shard."""
    shard: int
    """Its number."""
    repeats: tuple[Path, ...] = ()
    """Directories with the documents that repeat an earlier one, equal or nearly so."""
    selection: Path | None = None
    """The rows and texts without `repeats` that are left once repeated paragraphs are removed; None where that is
    not asked for."""

    def load(self) -> Selection:
        """The rows and texts that are left."""
        if self.selection is not None:
            return load_selection(self.selection)
        rows = np.arange(self.num_documents())
        for directory in self.repeats:
            rows = _without(rows, directory, self.shard)
        return Selection.whole(rows)

    def num_documents(self) -> int:
        """Documents in the shard."""
        return pq.read_metadata(str(self.documents)).num_rows


def _without(rows: np.ndarray, repeats: Path, shard: int) -> np.ndarray:
    """The rows of a document shard that are not among the documents in the directory `repeats`."""
    found = read_documents(repeats, shard)
    return rows if found is None else np.setdiff1d(rows, rows_of(found["document"]))


def read_texts(documents: Path, selection: Selection) -> Iterator[tuple[np.ndarray, pa.StringArray]]:
    """([n] rows, their [n] selected texts) of a document shard, a row group at a time."""
    position = 0
    for table in read_selected(documents, ("text",), selection):
        texts = one_chunk(table["text"])
        yield selection.rows[position : position + len(texts)], texts
        position += len(texts)
