"""Rows cut from the shuffled stream of documents.

A document is the virtual sequence `<s> ids </s>`; the stream of an epoch is all documents one after the other in that
epoch's order. A row that begins inside a document is opened by one more `<s>` than the stream has.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cluster.compiled_loop import compiled_loop
from pipeline.samples.cache_lines import prefetch
from pipeline.samples.rows import Rows, Slices, empty_slices

DOCUMENT, END = 0, 1
"""Columns of `StreamRows.documents`."""
START, STOP, FIRST = 0, 1, 2
"""Columns of `StreamRows.rows`."""


@dataclass(frozen=True, slots=True)
class StreamRows:
    """The rows of one epoch. A row of either table is in one cache line, because its columns are read together."""

    documents: np.ndarray
    """[documents, 2] int64, in the epoch's order: the document's number, and one past its `</s>` in the stream."""
    rows: np.ndarray
    """[num_rows, 3] int64: first position in the stream, one past the last, and the place among `documents` of the
    one that the row begins in."""

    def look_up(self, places: np.ndarray) -> Rows:
        """The rows with the given numbers."""
        return Rows(places, _slices(self.rows, self.documents, places))


def stream_of(lengths: np.ndarray, documents: np.ndarray) -> np.ndarray:
    """`StreamRows.documents` of documents in the order of an epoch; `lengths` are of all documents of the store."""
    stream = np.empty((len(documents), 2), dtype=np.int64)
    _fill_stream(lengths, documents, stream)
    return stream


@compiled_loop
def length_of_stream(lengths: np.ndarray, documents: np.ndarray) -> int:
    """Positions of the documents one after the other, with their special tokens, in whatever order."""
    total = np.int64(2 * len(documents))
    for document in documents:
        total += np.int64(lengths[document])
    return int(total)


@compiled_loop
def _fill_stream(lengths: np.ndarray, documents: np.ndarray, stream: np.ndarray) -> None:
    end = 0
    for i in range(len(documents)):
        end += lengths[documents[i]] + 2
        stream[i, DOCUMENT], stream[i, END] = documents[i], end


@compiled_loop
def _slices(table: np.ndarray, documents: np.ndarray, rows: np.ndarray) -> Slices:
    offsets = np.zeros(len(rows) + 1, dtype=np.int64)
    for i in range(len(rows)):
        prefetch(documents, table[rows[i], FIRST] * documents.shape[1])
    for i in range(len(rows)):
        row = table[rows[i]]
        index = row[FIRST]
        while documents[index, END] < row[STOP]:
            index += 1
        offsets[i + 1] = offsets[i] + index - row[FIRST] + 1
    slices = empty_slices(offsets)
    for i in range(len(rows)):
        row = table[rows[i]]
        for k in range(offsets[i + 1] - offsets[i]):
            index = row[FIRST] + k
            before = documents[index - 1, END] if index > 0 else 0
            end = documents[index, END]
            first_token, last_token = before + 1, end - 1
            place = offsets[i] + k
            slices.documents[place] = documents[index, DOCUMENT]
            slices.starts[place] = min(max(row[START], first_token), last_token) - first_token
            slices.stops[place] = min(row[STOP], last_token) - first_token
            slices.closed[place] = end <= row[STOP]
    return slices
