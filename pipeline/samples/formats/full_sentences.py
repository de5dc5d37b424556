"""The format `full_sentences` (Liu et al. 2019, section 4.2): the shuffled stream cut where sentences end.

Every row holds as many whole sentences as fit, across documents; the rest of the row is padding. Only a sentence that
is longer than a row is cut. How many rows that gives depends a little on the order of the documents: every epoch has
as many as epoch 0. Of an epoch that would have more, the last few are left out; one that has fewer shows its first
few twice.
"""

from __future__ import annotations

import numpy as np

from cluster.compiled_loop import compiled_loop
from data_prep.token_store import TokenArrays
from pipeline.samples.formats.base import FormatInput
from pipeline.samples.formats.stream import DOCUMENT, END, FIRST, START, STOP, StreamRows, stream_of
from pipeline.samples.text import stop_at_sentence


class FullSentences:
    """Documents, cut into rows of whole sentences."""

    def __init__(self, given: FormatInput) -> None:
        self._given = given
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
        text = self._given.text
        order = self._given.order.documents(epoch, self._given.documents)
        documents = stream_of(text.lengths, order[text.lengths[order] > 0])
        return StreamRows(documents, _rows_of_sentences(text, documents, self._given.length))


@compiled_loop
def _rows_of_sentences(text: TokenArrays, documents: np.ndarray, length: int) -> np.ndarray:
    """`StreamRows.rows`, each of whole sentences."""
    # The sentence after a row did not fit into it, so two neighbouring rows hold more than `length` together.
    total = documents[-1, END] if len(documents) else 0
    rows = np.empty(((2 * total + length + 1) // (length - 1) + 1, 3), dtype=np.int64)
    row, space, index, position = 0, length, 0, 0
    while index < len(documents):
        document, end = documents[index, DOCUMENT], documents[index, END]
        size = text.lengths[document]
        first_token = end - size - 1
        stop, closed = stop_at_sentence(text, document, position, space, length)
        if stop > position:
            if space == length:
                rows[row, START] = first_token + (position if position > 0 else -1)
                rows[row, FIRST] = index
            rows[row, STOP] = end if closed else first_token + stop
            space -= 1 + stop - position + (1 if closed else 0)
        if not closed:
            row += 1
            space = length
        # A sentence that fills a row to its last position leaves no place for `</s>`, which is left out.
        position = 0 if stop == size else stop
        index += 1 if stop == size else 0
    if space < length:
        row += 1
    return rows[:row].copy()
