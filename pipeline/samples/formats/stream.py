"""Rows cut from the shuffled stream of documents.

A document is the virtual sequence `<s> ids </s>`; the stream of an epoch is all documents one after the other in that
epoch's order. A row that begins inside a document is opened by one more `<s>` than the stream has.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cluster.compiled_loop import compiled_loop
from pipeline.samples.epochs.shuffle import StoreOrder
from pipeline.samples.rows import Rows, Slices, empty_slices

DOCUMENT, SIZE = 0, 1
"""Columns of `StreamRows.documents`."""
FIRST, SKIPPED, WIDTH = 0, 1, 2
"""Columns of `StreamRows.rows`."""


@dataclass(frozen=True, slots=True)
class StreamRows:
    """The rows of one epoch. A row of either table is in one cache line, because its columns are read together.

    Nothing is counted from the beginning of the stream, so that 32 bits hold all numbers but those of more than 2^31
    documents: a billion documents take 8 GB in an epoch, and a billion rows 12.
    """

    documents: np.ndarray
    """[documents, 2] int32 or int64, in the epoch's order: the document's number, and its positions in the stream."""
    rows: np.ndarray
    """[num_rows, 3] of the same type: the place among `documents` of the one that the row begins in, the positions of
    it that precede the row, and the positions of the row."""

    def look_up(self, places: np.ndarray) -> Rows:
        """The rows with the given numbers."""
        return Rows(places, _slices(self.rows, self.documents, places))

    def arrays(self) -> dict[str, np.ndarray]:
        """The fields, by name."""
        return {"documents": self.documents, "rows": self.rows}


def shuffled_stream(lengths: np.ndarray, documents: np.ndarray, order: StoreOrder, epoch: int) -> np.ndarray:
    """`StreamRows.documents` of an epoch, of the type of `documents`; `lengths` are of all documents of the store."""
    stream = np.empty((len(documents), 2), dtype=documents.dtype)
    # They are sorted in the memory that the table takes anyway.
    order.documents(epoch, documents, stream.reshape(2, -1))
    _spread(lengths, stream)
    return stream


@compiled_loop
def length_of_stream(lengths: np.ndarray, documents: np.ndarray) -> int:
    """Positions of the documents one after the other, with their special tokens, in whatever order."""
    total = np.int64(2 * len(documents))
    for document in documents:
        total += np.int64(lengths[document])
    return int(total)


@compiled_loop
def _spread(lengths: np.ndarray, stream: np.ndarray) -> None:
    """Make the table, from the front, of the documents in the second half of its memory: none is overwritten before it
    is read."""
    documents = stream.reshape(-1)[len(stream) :]
    for i in range(len(stream)):
        document = documents[i]
        stream[i, DOCUMENT], stream[i, SIZE] = document, lengths[document] + 2


@compiled_loop
def _slices(table: np.ndarray, documents: np.ndarray, rows: np.ndarray) -> Slices:
    offsets = np.zeros(len(rows) + 1, dtype=np.int64)
    for i in range(len(rows)):
        row = table[rows[i]]
        index, left = row[FIRST], np.int64(row[SKIPPED]) + row[WIDTH]
        while documents[index, SIZE] < left:
            left -= documents[index, SIZE]
            index += 1
        offsets[i + 1] = offsets[i] + index - row[FIRST] + 1
    slices = empty_slices(offsets)
    for i in range(len(rows)):
        row = table[rows[i]]
        # Both count from the beginning of a document.
        start, stop = np.int64(row[SKIPPED]), np.int64(row[SKIPPED]) + row[WIDTH]
        for k in range(offsets[i + 1] - offsets[i]):
            place, document = offsets[i] + k, documents[row[FIRST] + k]
            size = document[SIZE]
            slices.documents[place] = document[DOCUMENT]
            slices.starts[place] = min(max(start, 1), size - 1) - 1
            slices.stops[place] = min(stop, size - 1) - 1
            slices.closed[place] = size <= stop
            start, stop = 0, stop - size
    return slices
