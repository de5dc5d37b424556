"""The selection of a document shard: the rows that are kept, and the spans that are removed from their texts.

Deduplication and decontamination decide; neither rewrites a document. A decision is a small Parquet file beside
the shard's number, and every later stage reads documents through it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from cluster.artefacts.storage import contents_of
from data_prep.layout import REPAIR, SELECTION_FILES

_SCHEMA = pa.schema([("row", pa.uint32()), ("removed", pa.list_(pa.uint32())), ("repeats_id", pa.bool_())])


@dataclass(frozen=True, slots=True)
class Selection:
    """The kept rows of one document shard, and the parts of their texts that are removed."""

    rows: np.ndarray
    """[kept] int64 ascending row indices in the document shard."""
    span_counts: np.ndarray
    """[kept] int64 spans removed from each row's text."""
    spans: np.ndarray
    """[spans, 2] int64 half-open ranges of UTF-8 bytes, row by row, ascending and disjoint within a row. They lie
    on character boundaries and refer to the text as the document shard holds it."""
    repeated_ids: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    """[repeated] int64 ascending rows whose id an earlier document of the corpus has; they are named by their place."""

    @classmethod
    def whole(cls, rows: np.ndarray) -> Selection:
        """The given rows with nothing removed from them."""
        rows = np.asarray(rows, dtype=np.int64)
        return cls(rows, np.zeros(len(rows), dtype=np.int64), np.empty((0, 2), dtype=np.int64))

    def with_whole_texts(self) -> Selection:
        """A selection of the same rows with whole texts."""
        return replace(Selection.whole(self.rows), repeated_ids=self.repeated_ids)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def first_spans(self) -> np.ndarray:
        """[kept + 1] int64: the spans of row `i` are `spans[first_spans[i] : first_spans[i + 1]]`."""
        return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(self.span_counts)])

    def take(self, chosen: np.ndarray) -> Selection:
        """The part of the selection at the given ascending positions (not row numbers)."""
        bounds = self.first_spans
        parts = [self.spans[bounds[i] : bounds[i + 1]] for i in chosen.tolist() if self.span_counts[i]]
        spans = np.concatenate([np.empty((0, 2), dtype=np.int64), *parts])
        return Selection(self.rows[chosen], self.span_counts[chosen], spans, self.repeated_ids)

    def between(self, first: int, last: int) -> Selection:
        """The part whose rows are in `first <= row < last`."""
        start, end = np.searchsorted(self.rows, [first, last]).tolist()
        bounds = self.first_spans
        return Selection(
            self.rows[start:end],
            self.span_counts[start:end],
            self.spans[bounds[start] : bounds[end]],
            self.repeated_ids,
        )


def remove_spans(text: str, spans: np.ndarray) -> str:
    """The text without the given [spans, 2] ranges of UTF-8 bytes; line breaks at both ends are stripped."""
    data = text.encode("utf-8")
    kept, position = [], 0
    for start, end in spans.tolist():
        kept.append(data[position:start])
        position = end
    kept.append(data[position:])
    return b"".join(kept).decode("utf-8").strip("\n")


def edit_texts(texts: pa.Array, selection: Selection) -> pa.Array:
    """[kept] texts of the selection's rows without the removed spans."""
    if not len(selection.spans):
        return texts
    edited = texts.to_pylist()
    bounds = selection.first_spans
    for number in np.flatnonzero(selection.span_counts).tolist():
        edited[number] = remove_spans(edited[number], selection.spans[bounds[number] : bounds[number + 1]])
    return pa.array(edited, type=texts.type)


def write_selection(path: Path, selection: Selection) -> None:
    """Write one shard's selection; the same selection gives the same bytes."""
    offsets = pa.array((2 * selection.first_spans).astype(np.int32))
    removed = pa.ListArray.from_arrays(offsets, pa.array(selection.spans.astype(np.uint32).reshape(-1)))
    repeats_id = pa.array(np.isin(selection.rows, selection.repeated_ids))
    table = pa.table([pa.array(selection.rows.astype(np.uint32)), removed, repeats_id], schema=_SCHEMA)
    pq.write_table(table, str(path), compression="zstd", write_statistics=False)


def load_selection(path: Path) -> Selection:
    """Read one shard's selection.

    Raises:
        CorruptArtefactError: the file is missing or unreadable.
    """
    with contents_of(path, next_step=REPAIR):
        table = pq.read_table(str(path), memory_map=False).combine_chunks()
        rows = table["row"].to_numpy().astype(np.int64)
        removed = (
            table["removed"].chunk(0)
            if table["removed"].num_chunks
            else pa.array([], type=_SCHEMA.field(1).type)
        )
        spans = removed.flatten().to_numpy(zero_copy_only=False).astype(np.int64).reshape(-1, 2)
        counts = np.diff(removed.offsets.to_numpy()).astype(np.int64) // 2
        return Selection(rows, counts, spans, rows[table["repeats_id"].to_numpy()])


def read_selection(directory: Path, shard: int, num_shards: int) -> Selection:
    """The selection of one document shard in an artefact that holds one file for each.

    Raises:
        CorruptArtefactError: the shard's file is missing or unreadable.
    """
    return load_selection(directory / SELECTION_FILES.file(shard, num_shards))
