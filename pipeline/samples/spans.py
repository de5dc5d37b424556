"""What rows are made of, whatever the format: stretches of documents between special tokens."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
from numba import njit


class Spans(NamedTuple):
    """The stretches of documents in some rows, row by row and from left to right.

    A row is its spans end to end, each `[<s>] ids [</s>]`, and padding. `<s>` opens a piece; a span without it goes
    on with the piece before (the second segment of a pair).
    """

    offsets: np.ndarray
    """[rows + 1] int64: row `i` is made of the spans `offsets[i] : offsets[i + 1]`."""
    documents: np.ndarray
    """[spans] int64 document numbers."""
    starts: np.ndarray
    """[spans] int64 first token of the document."""
    stops: np.ndarray
    """[spans] int64 one past the last token."""
    opened: np.ndarray
    """[spans] bool: `<s>` stands before the ids."""
    closed: np.ndarray
    """[spans] bool: `</s>` stands after the ids."""


@njit(cache=True, nogil=True)
def spans_to_fill(offsets: np.ndarray) -> Spans:
    """`offsets[-1]` spans, each opening a piece; everything else of them is to be filled in."""
    total = offsets[-1]
    return Spans(
        offsets,
        np.empty(total, dtype=np.int64),
        np.empty(total, dtype=np.int64),
        np.empty(total, dtype=np.int64),
        np.ones(total, dtype=np.bool_),
        np.empty(total, dtype=np.bool_),
    )


class Piece(NamedTuple):
    """A stretch of one document inside a row; of a pair, one of its two segments."""

    document: int
    """Number of the document in its store."""
    start: int
    """First token of the stretch, counted without special tokens."""
    stop: int
    """One past its last token; `start == stop` when only special tokens fell into the row."""
    row_start: int
    """Where the piece begins in the row."""
    row_stop: int
    """One past where it ends."""


class Rows(Protocol):
    """The rows of one epoch of one part of a store."""

    @property
    def pair_labels(self) -> np.ndarray | None:
        """[num_rows] int64 labels of pairs (see `Packed.pair_labels`); None in formats without pairs."""
        ...

    def spans(self, rows: np.ndarray) -> Spans:
        """What the rows with the given int64 numbers are made of."""
        ...


class Layout(Protocol):
    """How documents become rows: fixed for a part of a store, filled anew in every epoch."""

    @property
    def num_rows(self) -> int:
        """Rows of an epoch, the same in all of them."""
        ...

    def epoch(self, number: int) -> Rows:
        """The rows of an epoch."""
        ...


def pieces_of(spans: Spans, row: int = 0) -> list[Piece]:
    """The stretches of documents in one of the rows; padding is not among them."""
    pieces, column = [], 0
    for number in range(int(spans.offsets[row]), int(spans.offsets[row + 1])):
        start, stop = int(spans.starts[number]), int(spans.stops[number])
        width = stop - start + int(spans.opened[number]) + int(spans.closed[number])
        pieces.append(Piece(int(spans.documents[number]), start, stop, column, column + width))
        column += width
    return pieces
