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

import numpy as np

from cluster.compiled_loop import compiled_loop
from data_prep.token_files import TokenArrays
from pipeline.samples.packed import EpochRows, FormatInput, add_slice, slice_numbers
from pipeline.samples.text import stop_at_sentence


def _shuffled_stream(given: FormatInput, documents: np.ndarray, epoch: int, num_rows: int) -> np.ndarray:
    """An empty `EpochRows.table` with room for so many rows. The documents, in the epoch's order, are at the
    end of its memory."""
    # Every row but the first may begin with a second slice of a document.
    table = np.empty((len(documents) + num_rows, 4), dtype=documents.dtype)
    # They are sorted in the memory that the table takes anyway.
    memory = table.reshape(-1)[table.size - 2 * len(documents) :]
    given.order.documents(epoch, documents, memory.reshape(2, -1))
    return table


@compiled_loop
def length_of_stream(lengths: np.ndarray, documents: np.ndarray) -> int:
    """Positions of the documents one after the other, with their special tokens, in whatever order."""
    total = np.int64(2 * len(documents))
    for document in documents:
        total += np.int64(lengths[document])
    return int(total)


class Contiguous:
    """Documents, cut into rows of a contiguous stream."""

    num_rows: int
    """Full rows; does not depend on the order of the documents."""

    def __init__(self, given: FormatInput) -> None:
        self._given = given
        self.num_rows = length_of_stream(given.lengths, given.documents) // (given.length - 1)

    def epoch(self, number: int) -> EpochRows:
        """Cut the documents in the order of the epoch."""
        given = self._given
        table = _shuffled_stream(given, given.documents, number, self.num_rows)
        offsets = np.zeros(self.num_rows + 1, dtype=np.int64)
        _cut_anywhere(given.lengths, len(given.documents), given.length - 1, table, offsets)
        return EpochRows(table[: offsets[-1]], offsets)


@compiled_loop
def _cut_anywhere(
    lengths: np.ndarray, num_documents: int, step: int, table: np.ndarray, offsets: np.ndarray
) -> None:
    """Write the table and the offsets of rows of `step` positions.

    The table is written from the front, and the documents are read from its end before they are overwritten.
    """
    documents = table.reshape(-1)[table.size - num_documents :]
    row, count, left = 0, 0, np.int64(step)
    for place in range(num_documents):
        document = documents[place]
        # Positions are counted from the beginning of the document, with its special tokens.
        position, size = np.int64(0), np.int64(lengths[document]) + 2
        if size < left:
            count = add_slice(table, count, document, 0, size - 2, True)
            left -= size
            continue
        while position < size and row + 1 < len(offsets):
            stop = min(position + left, size)
            first, last = min(max(position, 1), size - 1), min(stop, size - 1)
            count = add_slice(table, count, document, first - 1, last - 1, stop == size)
            left -= stop - position
            position = stop
            if left == 0:
                row, left = row + 1, np.int64(step)
                offsets[row] = count


class FullSentences:
    """Documents, cut into rows of whole sentences."""

    def __init__(self, given: FormatInput) -> None:
        self._given = given
        self._documents = given.documents[given.lengths[given.documents] > 0]
        self._first: EpochRows | None = self._cut(0)
        self.num_rows = len(self._first.offsets) - 1

    def epoch(self, number: int) -> EpochRows:
        """Cut the documents in the epoch's order, and wrap around to the number of rows that all epochs have."""
        # Counting the rows has cut the first epoch already; it is kept until that epoch is asked for.
        first, self._first = self._first, None
        cut = first if number == 0 and first is not None else self._cut(number)
        found = len(cut.offsets) - 1
        if found == self.num_rows:
            return cut
        kept = np.arange(self.num_rows) % max(found, 1)
        offsets, numbers = slice_numbers(cut.offsets, kept)
        return EpochRows(cut.table, offsets, numbers)

    def _cut(self, epoch: int) -> EpochRows:
        given, text, length = self._given, self._given.text, self._given.length
        # The sentence after a row did not fit into it, so two neighbouring rows hold more than `length` together.
        most = (2 * length_of_stream(text.lengths, self._documents) + length + 1) // (length - 1) + 1
        table = _shuffled_stream(given, self._documents, epoch, most)
        offsets = np.zeros(most + 1, dtype=np.int64)
        num_rows = _cut_at_sentences(text, len(self._documents), length, table, offsets)
        return EpochRows(table[: offsets[num_rows]], offsets[: num_rows + 1])


@compiled_loop
def _cut_at_sentences(
    text: TokenArrays, num_documents: int, length: int, table: np.ndarray, offsets: np.ndarray
) -> int:
    """Write the table and the offsets of rows of whole sentences; returns the number of rows."""
    documents = table.reshape(-1)[table.size - num_documents :]
    row, count, space = 0, 0, length
    for place in range(num_documents):
        document, start = documents[place], 0
        size = text.lengths[document]
        while start < size:
            stop, closed = stop_at_sentence(text, document, start, space, length)
            if stop > start:
                count = add_slice(table, count, document, start, stop, closed)
                space -= 1 + stop - start + (1 if closed else 0)
            if not closed:
                # A sentence that fills a row to its last position leaves no place for `</s>`, which is left out.
                row, space = row + 1, length
                offsets[row] = count
            start = stop
    if space < length:
        row += 1
        offsets[row] = count
    return row
