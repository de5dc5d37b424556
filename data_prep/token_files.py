"""The memory-mapped files of a token store as one stretch of memory, and the plain arrays that compiled loops read it
by."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from cluster.artefacts.storage import contents_of
from data_prep.layout import REPAIR


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


def map_batches(path: Path) -> tuple[pa.Buffer, list[pa.RecordBatch]]:
    """The memory that a token shard is mapped to, and its record batches, which are views of it.

    Raises:
        CorruptArtefactError: it is no token shard.
    """
    with contents_of(path, next_step=REPAIR):
        buffer = pa.memory_map(str(path), "r").read_buffer()
        reader = pa.ipc.open_stream(buffer)
        ids_dtype(reader.schema)
        return buffer, list(reader)


def ids_dtype(schema: pa.Schema) -> np.dtype:
    """uint16 or uint32: the type of the ids in shards of this schema."""
    return np.dtype(str(schema.field("input_ids").type.value_type))


def index_batches(
    buffers: Sequence[pa.Buffer], batches: Sequence[pa.RecordBatch], dictionaries: Sequence[tuple[str, ...]]
) -> TokenIndex:
    """The index of all record batches of a store.

    Args:
        buffers: what its files are mapped to.
        dictionaries: the different dictionaries of the source column.
    """
    dtype, base = ids_dtype(batches[0].schema), min(buffer.address for buffer in buffers)

    def place(array: pa.Array, item_bytes: int) -> int:
        """Where an array's elements start in the memory, in elements; 0 where it has none."""
        buffer = array.buffers()[1]
        if buffer is None or not buffer.size:
            return 0
        bytes_before = buffer.address - base + array.offset * item_bytes
        # Files are mapped to whole pages, and Arrow pads every buffer to 8 bytes.
        assert bytes_before % item_bytes == 0, "unaligned Arrow buffer"
        return bytes_before // item_bytes

    rows = np.empty((len(batches), NAMES + 1), dtype=np.int64)
    first = 0
    for row, batch in zip(rows, batches, strict=True):
        ids, starts, source = (batch.column(name) for name in ("input_ids", "sentence_starts", "source"))
        row[FIRST], first = first, first + batch.num_rows
        row[ID_OFFSETS], row[IDS] = place(ids.offsets, 4), place(ids.values, dtype.itemsize)
        row[SENTENCE_OFFSETS], row[SENTENCES] = place(starts.offsets, 4), place(starts.values, 4)
        row[SOURCES] = place(source.indices, 4)
        row[NAMES] = dictionaries.index(tuple(source.dictionary.to_pylist()))
    rows.flags.writeable = False
    ids, words = (np.asarray(_Memory(buffers, each)) for each in (dtype, np.dtype(np.int32)))
    return TokenIndex(ids, words, rows)


class _Memory:
    """Read-only memory that several buffers lie in, as NumPy's array interface describes it; keeps them alive."""

    def __init__(self, buffers: Sequence[pa.Buffer], dtype: np.dtype) -> None:
        self._buffers = buffers
        first_byte = min(buffer.address for buffer in buffers)
        end = max(buffer.address + buffer.size for buffer in buffers)
        self.__array_interface__ = {
            "data": (first_byte, True),
            "shape": ((end - first_byte) // dtype.itemsize,),
            "typestr": dtype.str,
            "version": 3,
        }


def advise(address: int, size_bytes: int, advice: int) -> None:
    """Tell the system how mapped memory will be read, by the MADV_ constants of `mmap`. Maps of Python's own have a
    method for it, but each of them keeps its file open."""
    begin = address // mmap.PAGESIZE * mmap.PAGESIZE
    with suppress(OSError, AttributeError):
        size = ctypes.c_size_t(address + size_bytes - begin)
        ctypes.CDLL(None).madvise(ctypes.c_void_p(begin), size, advice)


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
