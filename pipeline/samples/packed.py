"""The data between a token store and an objective: rows, as a format cuts them, and a micro-batch of packed samples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

import numpy as np

from cluster.compiled_loop import compiled_loop

if TYPE_CHECKING:
    from data_prep.token_files import TokenArrays
    from pipeline.samples.shuffle import StoreOrder

Relation = Literal["nsp", "sop"]
"""Origin of second segments: next or random (Devlin et al. 2019), or right or swapped order (Lan et al. 2020)."""
NO_SOURCE = -1
"""The index of padding, and of sources without an index."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The samples that an objective asks for."""

    formats: tuple[str, ...]
    """Formats it can learn from. The first is the format of its paper, taken when the configuration names none."""
    length: int
    """Tokens of a sample as it is read. Differs from the sequence length where noise shortens the text (T5)."""
    sentence_starts: bool = False
    """Whether `Packed.sentence_starts` is needed."""
    langs: bool = False
    """Whether every sample must be in one language, named by `Packed.langs`."""
    relation: Relation | None = None
    """The relation of the segments of a pair; None reads plain text."""
    positions: int = 0
    """Tokens of the longest text that the network reads or writes, where that may be more than the sequence length."""


@dataclass(frozen=True, slots=True)
class Packed:
    """A micro-batch of packed samples."""

    input_ids: np.ndarray
    """[batch, length] int64 token ids."""
    cu_seqlens: np.ndarray
    """[pieces + 1] int32 boundaries in the flattened batch; attention stays inside them. With full attention,
    only the boundaries of rows."""
    sample_ids: np.ndarray
    """[batch] uint64 indices of the samples in their epoch; all randomness derives from these."""
    epochs: np.ndarray
    """[batch] uint64 epochs of the samples."""
    sentence_starts: np.ndarray | None = None
    """[sentences] int32 ascending positions in the flattened batch of the first token of every sentence. Every piece
    has one at its first text token. None unless asked for."""
    segment_ids: np.ndarray | None = None
    """[batch, length] uint8: 0 in the first and 1 in the second segment of a pair; None without pairs."""
    pair_labels: np.ndarray | None = None
    """[batch] int64, a pair per row: 0 when the second segment follows the first in the text, 1 when it does not (a
    random one, or both swapped); None without pairs."""
    langs: np.ndarray | None = None
    """[batch] int64 index of each row's language in `TokenDataset.languages`; None unless asked for."""
    sources: np.ndarray | None = None
    """[batch, length] int16 indices in `Sampling.source_names`; `NO_SOURCE` for padding and for other sources. None
    unless asked for."""

    def sources_at(self, positions: np.ndarray, *, ahead: int = 0) -> np.ndarray | None:
        """[positions] int16 index of the source `ahead` places after each of some ascending positions in the flattened
        batch; None if sources were not asked for."""
        return None if self.sources is None else self.sources.reshape(-1).take(positions + ahead)


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


class Slice(NamedTuple):
    """A slice of a document inside a row; in a pair, one of its two segments."""

    document: int
    """Index of the document in its store."""
    start: int
    """First token of the slice, counted without special tokens."""
    stop: int
    """One past its last token; `start == stop` when only special tokens fell into the row."""
    row_start: int
    """First position of the slice in the row, with its `<s>`."""
    row_stop: int
    """One past its last position in the row."""


DOCUMENT, START, STOP, MARKS = 0, 1, 2, 3
"""Columns of `EpochRows.table`: the document, its first token, one past the last, the special tokens around them."""
OPENED, CLOSED = 1, 2
"""Summands of MARKS: `<s>` is before the tokens, `</s>` after them."""


@dataclass(frozen=True, slots=True)
class EpochRows:
    """The rows of one epoch of one part of the mixture."""

    table: np.ndarray
    """[slices, 4] int32, or int64 in stores of more documents: slices of documents. A slice is in one cache line,
    because its columns are read together."""
    offsets: np.ndarray
    """[num_rows + 1] int64: row `i` holds the slices `offsets[i] : offsets[i + 1]`, from left to right."""
    dealt: np.ndarray | None = None
    """[slices] int32 or int64: which one of the table each of these is; None where they are in the table's order."""
    pair_labels: np.ndarray | None = None
    """[num_rows] int64 (see `Packed.pair_labels`); None in formats without pairs."""
    order: np.ndarray | None = None
    """[num_rows] integers: the row at each place of the epoch; None as long as they are as a format has cut them."""

    def rows_at(self, places: np.ndarray) -> np.ndarray:
        """[places] int64: the numbers of the rows at some int64 places of the epoch; a sample's id has them."""
        return places if self.order is None else self.order[places].astype(np.int64)

    def slices_of(self, rows: np.ndarray) -> Slices:
        """The slices in the rows with some int64 numbers, in any order."""
        offsets, numbers = slice_numbers(self.offsets, rows)
        return _read_slices(self.table, offsets, numbers if self.dealt is None else self.dealt[numbers])


@dataclass(frozen=True, slots=True)
class FormatInput:
    """Documents of one store, to be cut into rows."""

    lengths: np.ndarray
    """[documents of the store] int32 tokens of each."""
    arrays: Callable[[], TokenArrays]
    """Gives `text`, which takes six times the memory of `lengths`."""
    documents: np.ndarray
    """[documents] int32 (int64 where indices exceed it): ascending indices."""
    length: int
    """Positions of a row."""
    order: StoreOrder
    """All randomness comes from here."""
    name: str
    """The documents in error messages, such as the path of the store."""
    relation: Relation | None = None
    """Only for formats of pairs."""
    shared_targets: bool = False
    """Only for `segment_pair`: all pairs of a document aim at one length."""

    @property
    def text(self) -> TokenArrays:
        """Locations of the tokens and sentences of all documents of the store, for formats that look at sentences."""
        return self.arrays()


class RowFormat(Protocol):
    """Documents, cut into rows by one format."""

    @property
    def num_rows(self) -> int:
        """Rows of an epoch, the same in all of them."""
        ...

    def epoch(self, number: int) -> EpochRows:
        """The rows of an epoch, before they are shuffled."""
        ...


@compiled_loop
def add_slice(table: np.ndarray, count: int, document: int, start: int, stop: int, closed: bool) -> int:
    """Write slice number `count` of `EpochRows.table`, or only count it where the table is empty; returns the number of
    the next."""
    if len(table):
        table[count, DOCUMENT] = document
        table[count, START] = start
        table[count, STOP] = stop
        table[count, MARKS] = OPENED + CLOSED * closed
    return count + 1


@compiled_loop
def slice_numbers(bounds: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """`Slices.offsets` of some rows, and the number of each slice; `bounds` are the offsets of all rows."""
    offsets = np.zeros(len(rows) + 1, dtype=np.int64)
    for i in range(len(rows)):
        offsets[i + 1] = offsets[i] + bounds[rows[i] + 1] - bounds[rows[i]]
    numbers = np.empty(offsets[-1], dtype=np.int64)
    for i in range(len(rows)):
        for k in range(offsets[i + 1] - offsets[i]):
            numbers[offsets[i] + k] = bounds[rows[i]] + k
    return offsets, numbers


@compiled_loop
def _read_slices(table: np.ndarray, offsets: np.ndarray, numbers: np.ndarray) -> Slices:
    total = len(numbers)
    documents, starts = np.empty(total, dtype=np.int64), np.empty(total, dtype=np.int64)
    stops = np.empty(total, dtype=np.int64)
    opened, closed = np.empty(total, dtype=np.bool_), np.empty(total, dtype=np.bool_)
    for k in range(total):
        one = table[numbers[k]]
        documents[k], starts[k], stops[k] = one[DOCUMENT], one[START], one[STOP]
        opened[k], closed[k] = (one[MARKS] & OPENED) != 0, (one[MARKS] & CLOSED) != 0
    return Slices(offsets, documents, starts, stops, opened, closed)


def slices_of_row(slices: Slices) -> list[Slice]:
    """The slices of a single row, without its padding."""
    found, column = [], 0
    for document, start, stop, opened, closed in zip(*(each.tolist() for each in slices[1:]), strict=True):
        width = stop - start + opened + closed
        found.append(Slice(document, start, stop, column, column + width))
        column += width
    return found
