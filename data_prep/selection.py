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
from data_prep.layout import REPAIR
from data_prep.ragged import Ragged

_SCHEMA = pa.schema([("row", pa.uint32()), ("removed", pa.list_(pa.uint32())), ("repeats_id", pa.bool_())])


@dataclass(frozen=True, slots=True)
class Selection:
    """The kept rows of one document shard, and the parts of their texts that are removed."""

    rows: np.ndarray
    """[kept] int64 ascending row indices in the document shard."""
    spans: Ragged
    """Per kept row, [spans, 2] int64 half-open ranges of UTF-8 bytes that are removed from its text, ascending and
    disjoint. They lie on character boundaries and refer to the text as the document shard holds it."""
    repeated_ids: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    """[repeated] int64 ascending rows whose id an earlier document of the corpus has; they are named by their place."""

    @classmethod
    def whole(cls, rows: np.ndarray) -> Selection:
        """The given rows with nothing removed from them."""
        rows = np.asarray(rows, dtype=np.int64)
        return cls(rows, Ragged(np.empty((0, 2), dtype=np.int64), np.zeros(len(rows) + 1, dtype=np.int64)))

    def with_whole_texts(self) -> Selection:
        """A selection of the same rows with whole texts."""
        return replace(Selection.whole(self.rows), repeated_ids=self.repeated_ids)

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, chosen: np.ndarray) -> Selection:
        """The part of the selection at the given ascending positions (not row numbers)."""
        return Selection(self.rows[chosen], self.spans.take(chosen), self.repeated_ids)

    def between(self, first: int, last: int) -> Selection:
        """The part whose rows are in `first <= row < last`."""
        start, end = np.searchsorted(self.rows, [first, last]).tolist()
        return Selection(self.rows[start:end], self.spans.between(start, end), self.repeated_ids)


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
    if not len(selection.spans.values):
        return texts
    edited = texts.to_pylist()
    for number in np.flatnonzero(selection.spans.lengths).tolist():
        edited[number] = remove_spans(edited[number], selection.spans[number])
    return pa.array(edited, type=texts.type)


def write_selection(path: Path, selection: Selection) -> None:
    """Write one shard's selection; the same selection gives the same bytes."""
    offsets = pa.array((2 * selection.spans.offsets).astype(np.int32))
    removed = pa.ListArray.from_arrays(
        offsets, pa.array(selection.spans.values.astype(np.uint32).reshape(-1))
    )
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
        removed = table["removed"].combine_chunks()
        spans = removed.flatten().to_numpy(zero_copy_only=False).astype(np.int64).reshape(-1, 2)
        offsets = removed.offsets.to_numpy().astype(np.int64) // 2
        return Selection(rows, Ragged(spans, offsets), rows[table["repeats_id"].to_numpy()])
