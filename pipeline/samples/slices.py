"""Slices of documents, which rows of every format consist of."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit


class Slices(NamedTuple):
    """The slices of documents in some rows, row by row and from left to right.

    A row is its slices end to end, each `[<s>] ids [</s>]`, and padding. `<s>` opens a piece; a slice without it
    continues the piece before (the second segment of a pair).
    """

    offsets: np.ndarray
    """[rows + 1] int64: row `i` holds the slices `offsets[i] : offsets[i + 1]`."""
    documents: np.ndarray
    """[slices] int64 document numbers."""
    starts: np.ndarray
    """[slices] int64 first token of the document."""
    stops: np.ndarray
    """[slices] int64 one past the last token."""
    opened: np.ndarray
    """[slices] bool: whether `<s>` is before the ids."""
    closed: np.ndarray
    """[slices] bool: whether `</s>` is after the ids."""


class DocumentSlice(NamedTuple):
    """A slice of a document inside a row; in a pair, one of its two segments."""

    document: int
    """Number of the document in its store."""
    start: int
    """First token of the slice, counted without special tokens."""
    stop: int
    """One past its last token; `start == stop` when only special tokens fell into the row."""
    row_start: int
    """Position in the row at which the slice begins, with its `<s>`."""
    row_stop: int
    """One past its last position in the row."""


@njit(cache=True, nogil=True)
def empty_slices(offsets: np.ndarray) -> Slices:
    """`offsets[-1]` slices to be filled in; each opens a piece already."""
    total = offsets[-1]
    return Slices(
        offsets,
        np.empty(total, dtype=np.int64),
        np.empty(total, dtype=np.int64),
        np.empty(total, dtype=np.int64),
        np.ones(total, dtype=np.bool_),
        np.empty(total, dtype=np.bool_),
    )


def slices_of_row(slices: Slices, row: int = 0) -> list[DocumentSlice]:
    """The slices of one of the rows, without its padding."""
    found, column = [], 0
    for number in range(int(slices.offsets[row]), int(slices.offsets[row + 1])):
        start, stop = int(slices.starts[number]), int(slices.stops[number])
        width = stop - start + int(slices.opened[number]) + int(slices.closed[number])
        found.append(DocumentSlice(int(slices.documents[number]), start, stop, column, column + width))
        column += width
    return found
