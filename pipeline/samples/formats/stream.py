"""The formats `contiguous` and `full_sentences`: rows cut from the shuffled stream of documents.

A document is the virtual sequence `<s> ids </s>`; the stream of an epoch is all documents one after the other in that
epoch's order. A row that begins inside a document is opened by one more `<s>` than the stream has.

- `contiguous`: full rows, wherever the cut falls. Row `r` holds the positions
  `[r * (length - 1), (r + 1) * (length - 1))` of the stream. A row that begins with a document is closed by one padding
  token where others have one more `<s>`: each token of the corpus is seen exactly once an epoch, except the tail that
  fills no row, which differs each epoch.
- `full_sentences` (Liu et al. 2019, section 4.2): as many whole sentences as fit, across documents; the rest of the row
  is padding. Only a sentence that is longer than a row is cut. The number of rows depends a little on the order of the
  documents: every epoch has as many as epoch 0. An epoch that would have more leaves out its last few; one that has
  fewer shows its first few twice.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cluster.compiled_loop import compiled_loop
from data_prep.token_files import TokenArrays
from pipeline.samples.packed import FormatInput, Rows, Slices, empty_slices
from pipeline.samples.shuffle import StoreOrder
from pipeline.samples.text import stop_at_sentence

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
        return Rows(places, _slices(self.rows, self.documents, places))

    def arrays(self) -> dict[str, np.ndarray]:
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


class Contiguous:
    """Documents, cut into rows of a contiguous stream."""

    num_rows: int
    """Full rows; does not depend on the order of the documents."""

    def __init__(self, given: FormatInput) -> None:
        self._given = given
        self.num_rows = length_of_stream(given.lengths, given.documents) // (given.length - 1)

    def epoch(self, number: int) -> StreamRows:
        """Cut the documents in the order of the epoch."""
        given = self._given
        documents = shuffled_stream(given.lengths, given.documents, given.order, number)
        rows = np.empty((self.num_rows, 3), dtype=documents.dtype)
        _fill_rows(documents, given.length - 1, rows)
        return StreamRows(documents, rows)


@compiled_loop
def _fill_rows(documents: np.ndarray, step: int, rows: np.ndarray) -> None:
    """Write `StreamRows.rows`, each `step` positions of the stream."""
    first = skipped = 0
    for row in range(len(rows)):
        while documents[first, SIZE] <= skipped:
            skipped -= documents[first, SIZE]
            first += 1
        rows[row, FIRST], rows[row, SKIPPED], rows[row, WIDTH] = first, skipped, step
        skipped += step


class FullSentences:
    """Documents, cut into rows of whole sentences."""

    def __init__(self, given: FormatInput) -> None:
        self._given = given
        self._documents = given.documents[given.lengths[given.documents] > 0]
        self._first: StreamRows | None = self._cut(0)
        self.num_rows = len(self._first.rows)

    def epoch(self, number: int) -> StreamRows:
        """Cut the documents in the epoch's order, and wrap around to the number of rows that all epochs have."""
        # Counting the rows has cut the first epoch already; it is kept until that epoch is asked for.
        first, self._first = self._first, None
        cut = first if number == 0 and first is not None else self._cut(number)
        kept = np.arange(self.num_rows) % max(len(cut.rows), 1)
        return StreamRows(cut.documents, cut.rows[kept])

    def _cut(self, epoch: int) -> StreamRows:
        text, length = self._given.text, self._given.length
        documents = shuffled_stream(text.lengths, self._documents, self._given.order, epoch)
        # The sentence after a row did not fit into it, so two neighbouring rows hold more than `length` together.
        most = (2 * length_of_stream(text.lengths, self._documents) + length + 1) // (length - 1) + 1
        rows = np.empty((most, 3), dtype=documents.dtype)
        return StreamRows(documents, rows[: _cut_at_sentences(text, documents, length, rows)].copy())


@compiled_loop
def _cut_at_sentences(text: TokenArrays, documents: np.ndarray, length: int, rows: np.ndarray) -> int:
    """Write `StreamRows.rows`, each of whole sentences; returns how many they are."""
    row, space, index, position = 0, length, 0, 0
    while index < len(documents):
        size = documents[index, SIZE] - 2
        stop, closed = stop_at_sentence(text, documents[index, DOCUMENT], position, space, length)
        if stop > position:
            skipped = position + 1 if position > 0 else 0
            if space == length:
                rows[row, FIRST], rows[row, SKIPPED], rows[row, WIDTH] = index, skipped, 0
            rows[row, WIDTH] += (size + 2 if closed else stop + 1) - skipped
            space -= 1 + stop - position + (1 if closed else 0)
        if not closed:
            row += 1
            space = length
        # A sentence that fills a row to its last position leaves no place for `</s>`, which is left out.
        position = 0 if stop == size else stop
        index += 1 if stop == size else 0
    return row + 1 if space < length else row
