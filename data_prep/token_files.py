"""One file of a token store, memory-mapped; several as one stretch of memory, and the plain arrays that compiled loops
read them by."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from cluster.artefacts.storage import contents_of
from data_prep.layout import REPAIR
from data_prep.ragged import offsets_of


class TokenArrays(NamedTuple):
    """The documents of a store for compiled loops, which are fastest with plain arrays."""

    ids: np.ndarray
    """uint16 or uint32, read-only: the memory from the first to the last of the mapped files. Only what the other
    arrays point at may be read: between the files there may be nothing."""
    words: np.ndarray
    """int32, read-only: the same memory as positions of sentences."""
    token_starts: np.ndarray
    """[num_documents] int64: where the ids of each document begin in `ids`."""
    lengths: np.ndarray
    """[num_documents] int32, or int64 from `find_documents`: how many they are."""
    sentence_starts: np.ndarray
    """[num_documents] int64: where in `words` the positions of its sentences begin."""
    sentence_counts: np.ndarray
    """[num_documents] int32, or int64 from `find_documents`: how many they are."""

    def of(self, documents: np.ndarray) -> TokenArrays:
        """The arrays restricted to some documents: element `k` describes `documents[k]`."""
        return TokenArrays(self.ids, self.words, *(values[documents] for values in self[2:]))


FIRST, ID_OFFSETS, IDS, SENTENCE_OFFSETS, SENTENCES, SOURCES, NAMES = range(7)
"""Columns of `TokenIndex.batches`: the batch's first document; where in `words` the offsets of its documents' ids
begin, and where in `ids` offset 0 points; where in `words` the offsets of their sentences begin, and where offset 0
points; where in `words` the numbers of their sources begin, and which of `source_dictionaries` has their names."""


class TokenIndex(NamedTuple):
    """Places of Arrow's own offsets by record batch: enough to look documents up, and soon made."""

    ids: np.ndarray
    """As in `TokenArrays`."""
    words: np.ndarray
    """As in `TokenArrays`; Arrow's offsets lie in the same memory."""
    batches: np.ndarray
    """[record batches, 7] int64, in the order of the documents; the columns are named above."""


class TokenFile:
    """One memory-mapped shard, with the element offsets of its documents in the whole file."""

    def __init__(self, path: Path) -> None:
        with contents_of(path, next_step=REPAIR):
            buffer = pa.memory_map(str(path), "r").read_buffer()
            reader = pa.ipc.open_stream(buffer)
            ids_type = np.dtype(str(reader.schema.field("input_ids").type.value_type))
            self._batches = list(reader)
        self._first_of_batch = offsets_of([batch.num_rows for batch in self._batches])
        self.num_documents = int(self._first_of_batch[-1])
        self.num_tokens = 0
        for batch in self._batches:
            offsets = batch.column("input_ids").offsets
            self.num_tokens += offsets[batch.num_rows].as_py() - offsets[0].as_py() if batch.num_rows else 0
        self.ids = _whole_file(buffer, ids_type)
        """The file's bytes as token ids."""
        self.words = _whole_file(buffer, np.dtype(np.int32))
        """The file's bytes as int32, such as positions of sentences."""
        self._base = buffer.address
        self.size_bytes = buffer.size

    def expect_random_reads(self) -> None:
        """Have the system read single pages from disk, and not the pages around them."""
        _advise(self._base, self.size_bytes, mmap.MADV_RANDOM)

    def places(
        self, ids_before: int, words_before: int
    ) -> Iterator[tuple[int, tuple[int, ...], tuple[str, ...]]]:
        """Where each batch lies in the memory of all files.

        Args:
            ids_before, words_before: items of that memory before this file.

        Yields:
            Its number of documents; the columns of `TokenIndex.batches` from `ID_OFFSETS` to `SOURCES`; the names of
            sources, by the numbers in the source column.
        """
        item_bytes = self.ids.itemsize
        for batch, sources in zip(self._batches, self.dictionaries("source"), strict=True):
            ids, starts = batch.column("input_ids"), batch.column("sentence_starts")
            places = (
                words_before + self._place(ids.offsets, 4),
                ids_before + self._place(ids.values, item_bytes),
                words_before + self._place(starts.offsets, 4),
                words_before + self._place(starts.values, 4),
                words_before + self._place(batch.column("source").indices, 4),
            )
            yield batch.num_rows, places, sources

    def _place(self, array: pa.Array, item_bytes: int) -> int:
        """Start of an array's elements, in elements from the beginning of the file; 0 where it has none."""
        buffer = array.buffers()[1]
        if buffer is None or not buffer.size:
            return 0
        bytes_before = buffer.address - self._base + array.offset * item_bytes
        # Arrow pads every buffer to 8 bytes, so the file is a valid array of any element type.
        assert bytes_before % item_bytes == 0, "unaligned Arrow buffer"
        return bytes_before // item_bytes

    def dictionaries(self, column: str) -> list[tuple[str, ...]]:
        """Values of a dictionary-encoded column by index, for every batch."""
        return [tuple(batch.column(column).dictionary.to_pylist()) for batch in self._batches]

    def value(self, column: str, row: int) -> str:
        """The text in a row of a column."""
        number = int(np.searchsorted(self._first_of_batch, row, side="right")) - 1
        return self._batches[number].column(column)[int(row - self._first_of_batch[number])].as_py()

    def columns(self, name: str) -> Iterator[Any]:
        """The column of every batch, to be read as a whole."""
        for batch in self._batches:
            column = batch.column(name)
            for buffer in filter(None, column.buffers()):
                _advise(buffer.address, buffer.size, mmap.MADV_WILLNEED)
            yield column


def will_read(values: np.ndarray) -> None:
    """Have the system read all of an array, which otherwise takes a wait for each page where reads at random are
    expected."""
    _advise(values.ctypes.data, values.nbytes, mmap.MADV_WILLNEED)


def _advise(address: int, size_bytes: int, advice: int) -> None:
    """Tell the system how mapped memory will be read. Maps of Python's own have a method for it, but each of them keeps
    its file open."""
    begin = address // mmap.PAGESIZE * mmap.PAGESIZE
    with suppress(OSError, AttributeError):
        size = ctypes.c_size_t(address + size_bytes - begin)
        ctypes.CDLL(None).madvise(ctypes.c_void_p(begin), size, advice)


def _whole_file(buffer: pa.Buffer, dtype: np.dtype) -> np.ndarray:
    return np.frombuffer(buffer, dtype=dtype, count=buffer.size // dtype.itemsize)


class _Memory:
    """Read-only memory that several arrays lie in, as NumPy's array interface describes it; keeps them alive."""

    def __init__(self, arrays: list[np.ndarray]) -> None:
        self._arrays = arrays
        dtype = arrays[0].dtype
        self.first_byte = min(array.ctypes.data for array in arrays)
        end = max(array.ctypes.data + array.nbytes for array in arrays)
        self.__array_interface__ = {
            "data": (self.first_byte, True),
            "shape": ((end - self.first_byte) // dtype.itemsize,),
            "typestr": dtype.str,
            "version": 3,
        }


def spanning(arrays: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """One array over the memory of all (mapped files of one element type), and [arrays] int64 where each begins."""
    memory = _Memory(arrays)
    bytes_before = np.array([array.ctypes.data - memory.first_byte for array in arrays], dtype=np.int64)
    assert not (bytes_before % arrays[0].itemsize).any(), "files are mapped to whole pages"
    return np.asarray(memory), bytes_before // arrays[0].itemsize


def categories(batches: Iterable[Any], names: list[str], num_documents: int) -> np.ndarray:
    """[num_documents] int32, read-only: the place in `names` of every document's value in a dictionary-encoded column,
    given as the batches have it."""
    if len(names) == 1:  # of billions of documents, as often as not
        return np.broadcast_to(np.int32(0), num_documents)
    numbers = np.empty(num_documents, dtype=np.int32)
    place = 0
    for values in batches:
        to_number = np.array([names.index(name) for name in values.dictionary.to_pylist()], dtype=np.int32)
        numbers[place : place + len(values)] = to_number[
            np.asarray(np.from_dlpack(values.indices), dtype=np.int32)
        ]
        place += len(values)
    numbers.flags.writeable = False
    return numbers
