"""The formats `best_fit`, `doc_sentences` and `sentences`: slices of documents, packed into rows.

- `best_fit`: whole documents (Ding et al. 2024, "Fewer truncations improve language modeling"). A document that is
  longer than a row is cut into full rows and a rest.
- `doc_sentences` (Liu et al. 2019, section 4.2): as many sentences of one document as fit in a row; `</s>` closes the
  document. Where the paper adds samples to batches of short inputs, rows are filled with pieces of other documents.
- `sentences`: each a piece of its own, as a bidirectional language model reads them (Peters et al. 2018, section 3).

Only a sentence that is longer than a row is cut. Every token is seen exactly once an epoch.

Widest first, each slice goes into the row with the least space left after it (Ding et al. 2024, section 3). Only widths
decide, so rows are computed once, as lists of widths, and an epoch only deals the slices of equal width anew.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np

from cluster.compiled_loop import compiled_loop
from data_prep.token_files import TokenArrays
from pipeline.samples.noise import fold, integer
from pipeline.samples.packed import CLOSED, MARKS, START, STOP, EpochRows, FormatInput, add_slice
from pipeline.samples.shuffle import index_type
from pipeline.samples.text import sentences_of, stop_at_sentence

Text = TypeVar("Text", TokenArrays, np.ndarray)


@compiled_loop
def add_whole_or_cut(table: np.ndarray, count: int, document: int, start: int, stop: int, length: int) -> int:
    """Add the slice `<s> [start, stop) </s>`; if it is longer than a row, as full rows and a rest.

    Where the ids alone fill the last row, it has no place for `</s>`, which is left out.
    """
    while stop - start + 2 > length:
        cut = min(start + length - 1, stop)
        count = add_slice(table, count, document, start, cut, False)
        if cut == stop:
            return count
        start = cut
    return add_slice(table, count, document, start, stop, True)


def best_fit_decreasing(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Pack slices into rows of `len(counts) - 1` positions.

    Args:
        counts: [length + 1] int64: how many slices there are of each width.

    Returns:
        Offsets [rows + 1] int64, and ranks [slices] int32 or int64 of slices, counted from the widest: row `i` holds
        `ranks[offsets[i] : offsets[i + 1]]`.
    """
    num_slices = int(counts.sum())
    return _group(*_rows_of_ranks(counts, np.empty(num_slices, index_type(num_slices))))


class PackedFormat:
    """Documents, cut into slices that are packed into rows: always the same widths together, with other slices of those
    widths in every epoch."""

    def __init__(
        self, cut: Callable[[Text, np.ndarray, int, np.ndarray], int], text: Text, given: FormatInput
    ) -> None:
        """Cut the documents into slices, and pack them.

        Args:
            cut: a compiled loop over `text` and `given`'s documents, with the length of a row: writes the slices to its
                last argument (or, if that is empty, only counts them), and returns how many there are.
            text: `given.text`, or `given.lengths`.
        """
        documents, length, self._order = given.documents, given.length, given.order
        dtype = index_type(len(given.lengths))
        count = cut(text, documents, length, np.empty((0, 4), dtype))
        self._table = table = np.empty((count, 4), dtype)
        cut(text, documents, length, table)
        widths = 1 + table[:, STOP] - table[:, START] + (table[:, MARKS] & CLOSED != 0)
        counts = np.bincount(widths, minlength=length + 1).astype(np.int64)
        self._offsets, self._ranks = best_fit_decreasing(counts)
        self._groups = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(counts[::-1])])
        self._by_width = np.empty(len(widths), index_type(len(widths)))
        _fill_widest_first(widths, self._groups[:-1].copy(), self._by_width)

    @property
    def num_rows(self) -> int:
        """Rows of an epoch, the last ones perhaps partly filled."""
        return len(self._offsets) - 1

    def epoch(self, number: int) -> EpochRows:
        """Deal the slices of equal width anew."""
        dealt = self._by_width.copy()
        shuffle_groups(dealt, self._groups, np.uint64(self._order.noise("pieces", number).state))
        return EpochRows(self._table, self._offsets, dealt[self._ranks])


@compiled_loop
def shuffle_groups(values: np.ndarray, offsets: np.ndarray, state: np.uint64) -> None:
    """Permute, in place, each of the groups `values[offsets[i] : offsets[i + 1]]` (Fisher and Yates)."""
    for group in range(len(offsets) - 1):
        first = offsets[group]
        for i in range(offsets[group + 1] - first - 1, 0, -1):
            j = integer(fold(state, np.uint64(first + i)), i + 1)
            values[first + i], values[first + j] = values[first + j], values[first + i]


@compiled_loop
def _rows_of_ranks(counts: np.ndarray, row_of: np.ndarray) -> tuple[np.ndarray, int]:
    """Fill in the row of every slice, from the widest, and count the rows.

    Rows are kept in one stack per free space. A row that takes one slice of a width is the tightest fit for the next
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


@compiled_loop
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


@compiled_loop
def _fill_widest_first(widths: np.ndarray, places: np.ndarray, by_width: np.ndarray) -> None:
    """Write the indices of the slices by falling width; `places` says where each width begins, widest first."""
    widest = len(places) - 1
    for i in range(len(widths)):
        group = widest - widths[i]
        by_width[places[group]] = i
        places[group] += 1


def best_fit(given: FormatInput) -> PackedFormat:
    return PackedFormat(_cut_whole, given.lengths, given)


@compiled_loop
def _cut_whole(lengths: np.ndarray, documents: np.ndarray, length: int, table: np.ndarray) -> int:
    """Write the slices, or only count them; see `PackedFormat`."""
    count = 0
    for document in documents:
        size = int(lengths[document])
        if size > 0:
            count = add_whole_or_cut(table, count, document, 0, size, length)
    return count


def doc_sentences(given: FormatInput) -> PackedFormat:
    """Pack slices of some sentences of one document."""
    return PackedFormat(_cut_at_sentences, given.text, given)


def sentences(given: FormatInput) -> PackedFormat:
    """Pack slices of one sentence."""
    return PackedFormat(_cut_sentences, given.text, given)


@compiled_loop
def _cut_at_sentences(text: TokenArrays, documents: np.ndarray, length: int, table: np.ndarray) -> int:
    """Write the slices, or only count them; see `PackedFormat`."""
    count = 0
    for document in documents:
        start = 0
        while start < text.lengths[document]:
            stop, closed = stop_at_sentence(text, document, start, length, length)
            count = add_slice(table, count, document, start, stop, closed)
            start = stop
    return count


@compiled_loop
def _cut_sentences(text: TokenArrays, documents: np.ndarray, length: int, table: np.ndarray) -> int:
    """Write the slices, or only count them; see `PackedFormat`."""
    count = 0
    for document in documents:
        starts = sentences_of(text, document)
        for i in range(len(starts)):
            stop = starts[i + 1] if i + 1 < len(starts) else text.lengths[document]
            count = add_whole_or_cut(table, count, document, int(starts[i]), int(stop), length)
    return count
