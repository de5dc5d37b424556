"""Rows of different lengths in one flat array: what Arrow calls a list column, in NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import ArrayLike


def string_offsets(strings: pa.Array) -> np.ndarray:
    """[n + 1] int32: where the bytes of [n] string begin and end in the last buffer of the array; a view."""
    if not len(strings):
        return np.zeros(1, dtype=np.int32)
    return np.frombuffer(strings.buffers()[1], np.int32, len(strings) + 1, 4 * strings.offset)


def offsets_of(lengths: ArrayLike) -> np.ndarray:
    """[rows + 1] int64: where rows of these lengths begin when they lie end to end, and where the last one ends."""
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths, dtype=np.int64)])


@dataclass(frozen=True, slots=True)
class Ragged:
    """`num_rows` arrays, end to end; their elements are numbers, or arrays of one shape."""

    values: np.ndarray
    """[total, ...] the elements of all rows."""
    offsets: np.ndarray
    """[num_rows + 1] int64: row `i` is `values[offsets[i] : offsets[i + 1]]`."""

    @classmethod
    def of(cls, rows: Sequence[np.ndarray]) -> Ragged:
        """The given rows (of one dtype) joined."""
        values = np.concatenate(rows) if rows else np.empty(0, dtype=np.int64)
        return cls(values, offsets_of([len(row) for row in rows]))

    @classmethod
    def of_strings(cls, strings: pa.Array) -> Ragged:
        """The UTF-8 bytes (uint8) of [n] string, none of them null; a view of what Arrow holds."""
        offsets = string_offsets(strings)
        data = np.frombuffer(strings.buffers()[2] or b"", dtype=np.uint8)[offsets[0] : offsets[-1]]
        return cls(data, (offsets - offsets[0]).astype(np.int64))

    @classmethod
    def merge(cls, first: Ragged, second: Ragged, from_second: np.ndarray) -> Ragged:
        """The rows of two parts (of one dtype), interleaved; at least one.

        Args:
            from_second: [rows] bool, whether each row is the next one of the second part, or of the first.
        """
        lengths = np.empty(len(from_second), dtype=np.int64)
        lengths[~from_second], lengths[from_second] = first.lengths, second.lengths
        runs, done = [], [0, 0]
        for run in np.split(from_second, np.flatnonzero(np.diff(from_second)) + 1):
            source = int(run[0])
            runs.append((first, second)[source].between(done[source], done[source] + len(run)).values)
            done[source] += len(run)
        return cls(np.concatenate(runs), offsets_of(lengths))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> np.ndarray:
        return self.values[self.offsets[row] : self.offsets[row + 1]]

    @property
    def lengths(self) -> np.ndarray:
        """[num_rows] int64 elements of every row."""
        return np.diff(self.offsets)

    @property
    def row_of(self) -> np.ndarray:
        """[total] int64: the row that each element is in."""
        return np.repeat(np.arange(len(self)), self.lengths)

    def equals(self, other: Ragged) -> bool:
        """Whether both hold the same rows."""
        return np.array_equal(self.offsets, other.offsets) and np.array_equal(self.values, other.values)

    @classmethod
    def beside(cls, parts: Sequence[Ragged]) -> Ragged:
        """Row `i` joins the rows `i` of all parts (of one dtype, with equally many rows)."""
        sizes = np.stack([part.lengths for part in parts], 1)
        begins = offsets_of(sizes)
        values = np.empty(begins[-1], dtype=parts[0].values.dtype)
        for number, part in enumerate(parts):
            first = begins[number : -1 : len(parts)]
            values[np.arange(len(part.values)) + np.repeat(first - part.offsets[:-1], part.lengths)] = (
                part.values
            )
        return cls(values, begins[:: len(parts)])

    def between(self, first: int, last: int) -> Ragged:
        """The rows from `first` to before `last`; a view."""
        bounds = self.offsets[first : last + 1]
        return Ragged(self.values[bounds[0] : bounds[-1]], bounds - bounds[0])

    def take(self, rows: np.ndarray) -> Ragged:
        """The given rows, in the given order, any of them any number of times."""
        return self.slices(
            rows, np.zeros(len(rows), dtype=np.int64), self.offsets[rows + 1] - self.offsets[rows]
        )

    def slices(self, rows: np.ndarray, first: np.ndarray, sizes: np.ndarray) -> Ragged:
        """Elements of each given row from `first`, as many as `sizes` says; all are int64 [slices]."""
        offsets = offsets_of(sizes)
        # Element k of the result is the (k - start of its slice)-th element of that slice.
        places = np.arange(offsets[-1]) + np.repeat(self.offsets[rows] + first - offsets[:-1], sizes)
        return Ragged(self.values[places], offsets)

    def replaced(self, rows: np.ndarray, other: Ragged) -> Ragged:
        """A copy with the given rows replaced by the rows of `other`."""
        order = np.arange(len(self))
        order[rows] = len(self) + np.arange(len(other))
        offsets = np.append(self.offsets, self.offsets[-1] + other.offsets[1:])
        return Ragged(np.concatenate([self.values, other.values]), offsets).take(order)
