"""Rows packed from pieces of given widths, by best-fit decreasing (Ding et al. 2024, section 3).

Widest first, each piece goes into the row in which it leaves the least space. Only widths decide: so the rows are
worked out once, as lists of widths, and an epoch just deals the pieces of equal width anew.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numba import njit

from pipeline.samples.epochs.order import StoreOrder
from pipeline.samples.noise.kernels import fold, integer
from pipeline.samples.spans import Spans, spans_to_fill

DOCUMENT, START, STOP, CLOSED = 0, 1, 2, 3
"""Columns of pieces, which are [pieces, 4] int32: the document, first token, one past the last, whether `</s>` follows.
What is read together lies together: a piece is in one cache line."""


def pieces_to_fill(count: int) -> np.ndarray:
    """[count, 4] int32 pieces."""
    return np.empty((count, 4), dtype=np.int32)


@njit(cache=True, nogil=True)
def add_piece(pieces: np.ndarray, count: int, document: int, start: int, stop: int, closed: bool) -> int:
    """Write piece number `count`, or only count it where `pieces` is empty; returns the number of the next."""
    if len(pieces):
        pieces[count, DOCUMENT] = document
        pieces[count, START] = start
        pieces[count, STOP] = stop
        pieces[count, CLOSED] = closed
    return count + 1


@njit(cache=True, nogil=True)
def add_whole_or_cut(
    pieces: np.ndarray, count: int, document: int, start: int, stop: int, length: int
) -> int:
    """Add `<s> [start, stop) </s>`; what is longer than a row as full rows and a rest.

    Where the ids alone fill the last row, it has no place for `</s>`, which is left out.
    """
    while stop - start + 2 > length:
        cut = min(start + length - 1, stop)
        count = add_piece(pieces, count, document, start, cut, False)
        if cut == stop:
            return count
        start = cut
    return add_piece(pieces, count, document, start, stop, True)


class Bins(NamedTuple):
    """Which pieces, ranked from the widest, share a row."""

    offsets: np.ndarray
    """[rows + 1] int64: row `i` holds `ranks[offsets[i] : offsets[i + 1]]`."""
    ranks: np.ndarray
    """[pieces] int32 or int64."""


def best_fit_decreasing(counts: np.ndarray) -> Bins:
    """Pack pieces into rows of `len(counts) - 1` positions.

    Args:
        counts: [length + 1] int64: how many pieces there are of each width.
    """
    return Bins(*_group(*_rows_of_ranks(counts, np.empty(int(counts.sum()), index_type(int(counts.sum()))))))


class BinLayout:
    """Pieces in rows: always the same widths together, with other pieces of those widths in every epoch."""

    def __init__(self, pieces: np.ndarray, length: int, order: StoreOrder) -> None:
        self._pieces = pieces
        self._order = order
        widths = 1 + pieces[:, STOP] - pieces[:, START] + pieces[:, CLOSED]
        counts = np.bincount(widths, minlength=length + 1).astype(np.int64)
        self._bins = best_fit_decreasing(counts)
        self._groups = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(counts[::-1])])
        self._by_width = _widest_first(widths, self._groups[:-1].copy(), index_type(len(widths)))

    @property
    def num_rows(self) -> int:
        """Rows of an epoch, the last ones perhaps partly filled."""
        return len(self._bins.offsets) - 1

    def epoch(self, number: int) -> BinRows:
        """Deal the pieces of equal width anew."""
        dealt = self._by_width.copy()
        shuffle_groups(dealt, self._groups, np.uint64(self._order.noise("pieces", number).state))
        return BinRows(self._pieces, self._bins.offsets, dealt[self._bins.ranks])


@dataclass(frozen=True, slots=True)
class BinRows:
    """The rows of one epoch."""

    pieces: np.ndarray
    """[pieces, 4] int32."""
    offsets: np.ndarray
    """[num_rows + 1] int64: row `i` holds the pieces `dealt[offsets[i] : offsets[i + 1]]`."""
    dealt: np.ndarray
    """[pieces] int32 or int64 numbers of pieces, row by row."""

    @property
    def pair_labels(self) -> None:
        """There are no pairs."""
        return None

    def spans(self, rows: np.ndarray) -> Spans:
        """What the rows with the given numbers are made of."""
        return _spans(self.pieces, self.offsets, self.dealt, rows)


@njit(cache=True, nogil=True)
def shuffle_groups(values: np.ndarray, offsets: np.ndarray, state: np.uint64) -> None:
    """Permute, in place, each of the stretches `values[offsets[i] : offsets[i + 1]]` (Fisher and Yates)."""
    for group in range(len(offsets) - 1):
        first = offsets[group]
        for i in range(offsets[group + 1] - first - 1, 0, -1):
            j = integer(fold(state, np.uint64(first + i)), i + 1)
            values[first + i], values[first + j] = values[first + j], values[first + i]


def index_type(count: int) -> type[np.signedinteger]:
    """The smaller integer type that numbers `count` things."""
    return np.int32 if count < 2**31 else np.int64


@njit(cache=True, nogil=True)
def _rows_of_ranks(counts: np.ndarray, row_of: np.ndarray) -> tuple[np.ndarray, int]:
    """Fill in the row of every piece, from the widest, and count the rows.

    Rows are kept in one stack per free space. A row that takes one piece of a width is the tightest fit for the next
    of that width as well, until it is too full: so each row is filled at once, and the search for the tightest row
    only ever moves up.
    """
    length = len(counts) - 1
    tops = np.full(length + 1, -1, dtype=np.int64)
    below = np.empty_like(row_of)
    num_rows, rank = 0, 0
    for width in range(length, 0, -1):
        left = counts[width]
        space = width
        while left > 0:
            while space <= length and tops[space] < 0:
                space += 1
            if space <= length:
                row, free = tops[space], space
                tops[space] = below[row]
            else:
                row, free = num_rows, length
                num_rows += 1
            taken = min(left, free // width)
            row_of[rank : rank + taken] = row
            rank += taken
            left -= taken
            free -= taken * width
            below[row] = tops[free]
            tops[free] = row
    return row_of, num_rows


@njit(cache=True, nogil=True)
def _group(row_of: np.ndarray, num_rows: int) -> tuple[np.ndarray, np.ndarray]:
    """The ranks in every row, as (offsets, ranks)."""
    offsets = np.zeros(num_rows + 1, dtype=np.int64)
    for rank in range(len(row_of)):
        offsets[row_of[rank] + 1] += 1
    offsets = np.cumsum(offsets)
    places = offsets.copy()
    ranks = np.empty_like(row_of)
    for rank in range(len(row_of)):
        ranks[places[row_of[rank]]] = rank
        places[row_of[rank]] += 1
    return offsets, ranks


def _widest_first(widths: np.ndarray, places: np.ndarray, dtype: type[np.signedinteger]) -> np.ndarray:
    """[pieces]: the pieces by falling width; `places` says where those of each width begin, widest first."""
    by_width = np.empty(len(widths), dtype=dtype)
    _place_by_width(widths, places, by_width)
    return by_width


@njit(cache=True, nogil=True)
def _place_by_width(widths: np.ndarray, places: np.ndarray, by_width: np.ndarray) -> None:
    widest = len(places) - 1
    for piece in range(len(widths)):
        group = widest - widths[piece]
        by_width[places[group]] = piece
        places[group] += 1


@njit(cache=True, nogil=True)
def _spans(pieces: np.ndarray, bounds: np.ndarray, dealt: np.ndarray, rows: np.ndarray) -> Spans:
    offsets = np.zeros(len(rows) + 1, dtype=np.int64)
    for i in range(len(rows)):
        offsets[i + 1] = offsets[i] + bounds[rows[i] + 1] - bounds[rows[i]]
    spans = spans_to_fill(offsets)
    for i in range(len(rows)):
        for k in range(offsets[i + 1] - offsets[i]):
            piece = pieces[dealt[bounds[rows[i]] + k]]
            place = offsets[i] + k
            spans.documents[place] = piece[DOCUMENT]
            spans.starts[place] = piece[START]
            spans.stops[place] = piece[STOP]
            spans.closed[place] = piece[CLOSED]
    return spans
