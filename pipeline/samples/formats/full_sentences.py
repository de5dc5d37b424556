"""The format `full_sentences` (Liu et al. 2019, section 4.2): the shuffled stream cut where sentences end.

Every row holds as many whole sentences as fit, across documents; the rest of the row is padding. Only a sentence that
is longer than a row is cut. How many rows that gives depends a little on the order of the documents: every epoch has
as many as epoch 0. Of an epoch that would have more, the last few are left out; one that has fewer shows its first
few twice.
"""

from __future__ import annotations

import numpy as np

from cluster.compiled_loop import compiled_loop
from data_prep.token_arrays import TokenArrays
from pipeline.samples.formats.base import FormatInput
from pipeline.samples.formats.stream import (
    DOCUMENT,
    FIRST,
    SIZE,
    SKIPPED,
    WIDTH,
    StreamRows,
    length_of_stream,
    shuffled_stream,
)
from pipeline.samples.text import stop_at_sentence


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
