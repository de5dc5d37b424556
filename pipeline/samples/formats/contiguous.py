"""The format `contiguous`: the shuffled stream of documents cut into full rows, wherever the cut falls.

Row `r` holds the positions `[r * (length - 1), (r + 1) * (length - 1))` of the stream. A row that begins with a
document is closed by one padding token where others have one more `<s>`: so each token of the corpus is seen exactly
once an epoch, but for the tail that fills no row, which differs each epoch.
"""

from __future__ import annotations

import numpy as np

from cluster.compiled_loop import compiled_loop
from pipeline.samples.formats.base import FormatInput
from pipeline.samples.formats.stream import (
    FIRST,
    SIZE,
    SKIPPED,
    WIDTH,
    StreamRows,
    length_of_stream,
    shuffled_stream,
)


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
