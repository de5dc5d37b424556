"""An epoch on disk: its samples in the order in which they are read, so that any of them is found at once.

An epoch is stretches, each an artefact of its own, and a stretch is `BLOCKS` blocks of `BLOCK` samples. `samples.bin`
holds the blocks one after the other, integers of one type: of every sample its row, its pair label, and how many spans
it and those before it in the block have; then of every span its document, first token, one past the last, and flags.
`index.npy` says of every block where it ends and what its hash is. The index is verified when a stretch is opened and
each block when it is read: nothing damaged is ever used, and nothing takes longer for more samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xxhash
from numba import njit

from cluster.artefacts.errors import ClozeError
from cluster.artefacts.manifest import FileEntry, hash_file
from cluster.artefacts.storage import commit, is_committed, open_artefact
from pipeline.samples.epochs.laid_out import Drawn, LaidOut
from pipeline.samples.formats.bins import index_type
from pipeline.samples.spans import Spans, spans_to_fill

KIND = "layout"
BLOCK = 4096
"""Samples."""
BLOCKS = 64
"""Of a stretch: it is written in a fraction of a second, and a billion documents are some thousand stretches."""
_SAMPLES, _INDEX = "samples.bin", "index.npy"
_BLOCKS_IN_MEMORY, _STRETCHES_IN_MEMORY = 4, 16
_ROW, _LABEL, _STOP = 0, 1, 2
"""Columns of the samples of a block; the last counts spans."""
_DOCUMENT, _FIRST_TOKEN, _LAST_TOKEN, _FLAGS = 0, 1, 2, 3
"""Columns of the spans of a block."""
_OPENED, _CLOSED = 1, 2


def stretches_of(num_samples: int) -> int:
    """How many stretches an epoch has."""
    return -(-num_samples // (BLOCKS * BLOCK))


def stretch_of(place: int) -> int:
    """The stretch that a place of the epoch lies in."""
    return place // (BLOCKS * BLOCK)


def stretch_directory(directory: Path, stretch: int) -> Path:
    """Where a stretch of the epoch in `directory` lies."""
    return directory / f"stretch-{stretch:05d}"


def write_stretch(
    staging: Path,
    directory: Path,
    identity: dict[str, Any],
    laid_out: LaidOut,
    stretch: int,
    num_documents: int,
    go_on: Callable[[int], None],
) -> None:
    """Commit a stretch of the epoch in `directory`; the work is gathered in `staging`, an empty directory.

    Args:
        identity: what the epoch is a function of.
        num_documents: documents of the store, which says how large their numbers are.
        go_on: called before each block with the bytes written so far; what it raises ends the writing.

    Raises:
        StorageError, OSError: the file system refused.
    """
    dtype = np.dtype(index_type(max(num_documents, len(laid_out.order)) + 1))
    first = stretch * BLOCKS * BLOCK
    stop = min(first + BLOCKS * BLOCK, len(laid_out.order))
    size_bytes, digest, index = 0, xxhash.xxh3_128(), []
    with (staging / _SAMPLES).open("wb") as stream:
        for block in _blocks(laid_out, range(first, stop), dtype):
            go_on(size_bytes)
            stream.write(block.data)
            digest.update(block.data)
            size_bytes += block.nbytes
            index.append([size_bytes, *_hash(block)])
    np.save(staging / _INDEX, np.array(index, dtype=np.uint64))
    index_digest, index_bytes = hash_file(staging / _INDEX)
    files = [
        FileEntry(path=_SAMPLES, size_bytes=size_bytes, xxh3_128=digest.hexdigest()),
        FileEntry(path=_INDEX, size_bytes=index_bytes, xxh3_128=index_digest),
    ]
    stats = {
        "samples": stop - first,
        "item_bytes": dtype.itemsize,
        "pairs": laid_out.layout.pair_labels is not None,
    }
    config = identity | {"stretch": stretch}
    commit(staging, stretch_directory(directory, stretch), KIND, config=config, files=files, stats=stats)


class DamagedStretchError(Exception):
    """A stretch that cannot be read as it was written."""

    def __init__(self, stretch: int, why: str) -> None:
        super().__init__(why)
        self.stretch = stretch


class KeptEpoch:
    """An epoch that is read from disk."""

    def __init__(self, directory: Path, identity: dict[str, Any]) -> None:
        self._directory, self._identity = directory, identity
        self._stretch = lru_cache(_STRETCHES_IN_MEMORY)(self._open)
        self._block = lru_cache(_BLOCKS_IN_MEMORY)(self._read)

    def has(self, stretch: int) -> bool:
        """Whether there is such a stretch, good or damaged."""
        return is_committed(stretch_directory(self._directory, stretch))

    def draw(self, places: np.ndarray) -> Drawn:
        """The samples at some int64 places of the epoch, in any order.

        Raises:
            DamagedStretchError: they cannot be read as they were written.
        """
        numbers = np.unique(places // BLOCK)
        samples, spans = _joined([self._block(number) for number in numbers.tolist()])
        # All blocks but the last of the epoch are full.
        own = np.searchsorted(numbers, places // BLOCK) * BLOCK + places % BLOCK
        rows, labels, found = _take(samples, spans, own)
        return Drawn(rows, found, labels if self._stretch(stretch_of(int(places[0]))).pairs else None)

    def _open(self, number: int) -> _Stretch:
        """A stretch with its index, verified."""
        directory = stretch_directory(self._directory, number)
        try:
            manifest = open_artefact(directory, kind=KIND, only=(_INDEX,))
            index = np.load(directory / _INDEX, allow_pickle=False)
        except (ClozeError, OSError, ValueError) as error:
            raise DamagedStretchError(number, str(error)) from error
        if manifest.config != self._identity | {"stretch": number}:
            raise DamagedStretchError(number, f"{directory} holds something else: {manifest.config}.")
        stats = manifest.stats
        dtype = np.dtype(f"i{stats['item_bytes']}")
        return _Stretch(directory / _SAMPLES, index, int(stats["samples"]), dtype, bool(stats["pairs"]))

    def _read(self, number: int) -> _Block:
        """A block, verified; blocks are numbered throughout the epoch."""
        stretch, number = divmod(number, BLOCKS)
        path, index, num_samples, dtype, _ = self._stretch(stretch)
        start, stop = (int(index[number - 1, 0]) if number else 0), int(index[number, 0])
        count = (stop - start) // dtype.itemsize
        try:
            values = np.fromfile(path, dtype, count, offset=start)
        except OSError as error:
            raise DamagedStretchError(stretch, str(error)) from error
        if len(values) != count or _hash(values) != index[number, 1:].tolist():
            raise DamagedStretchError(stretch, f"{path} is damaged between bytes {start} and {stop}.")
        num_samples = min(BLOCK, num_samples - number * BLOCK)
        return _Block(values[: 3 * num_samples].reshape(-1, 3), values[3 * num_samples :].reshape(-1, 4))


class _Stretch(NamedTuple):
    """An open stretch of an epoch."""

    path: Path
    """`samples.bin`."""
    index: np.ndarray
    """[blocks, 3] uint64: where each block ends, and its hash."""
    num_samples: int
    dtype: np.dtype
    pairs: bool
    """Whether samples have pair labels."""


class _Block(NamedTuple):
    """Consecutive samples of an epoch."""

    samples: np.ndarray
    """[samples, 3] integers; see above."""
    spans: np.ndarray
    """[spans, 4] integers; see above."""


def _hash(block: np.ndarray) -> list[int]:
    """xxh3_128 as two numbers."""
    return np.frombuffer(xxhash.xxh3_128_digest(block.data), dtype=np.uint64).tolist()


def _blocks(laid_out: LaidOut, places: range, dtype: np.dtype) -> Iterator[np.ndarray]:
    for first in range(places.start, places.stop, BLOCK):
        rows, spans, labels = laid_out.draw(np.arange(first, min(first + BLOCK, places.stop)))
        block = np.empty(3 * len(rows) + 4 * len(spans.documents), dtype=dtype)
        _fill(rows, np.zeros_like(rows) if labels is None else labels, spans, block)
        yield block


def _joined(blocks: list[_Block]) -> _Block:
    """Blocks of ascending numbers as one."""
    if len(blocks) == 1:
        return blocks[0]
    samples = np.concatenate([block.samples for block in blocks])
    sizes = [len(block.spans) for block in blocks]
    before = np.cumsum([0, *sizes[:-1]])
    samples[:, _STOP] += np.repeat(before, [len(block.samples) for block in blocks]).astype(samples.dtype)
    return _Block(samples, np.concatenate([block.spans for block in blocks]))


@njit(cache=True, nogil=True)
def _fill(rows: np.ndarray, labels: np.ndarray, spans: Spans, block: np.ndarray) -> None:
    for i in range(len(rows)):
        block[3 * i + _ROW], block[3 * i + _LABEL] = rows[i], labels[i]
        block[3 * i + _STOP] = spans.offsets[i + 1]
    for k in range(len(spans.documents)):
        place = 3 * len(rows) + 4 * k
        block[place + _DOCUMENT] = spans.documents[k]
        block[place + _FIRST_TOKEN], block[place + _LAST_TOKEN] = spans.starts[k], spans.stops[k]
        block[place + _FLAGS] = _OPENED * spans.opened[k] + _CLOSED * spans.closed[k]


@njit(cache=True, nogil=True)
def _take(samples: np.ndarray, table: np.ndarray, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray, Spans]:
    """The rows, pair labels and spans of some of the samples."""
    rows, labels = np.empty(len(chosen), dtype=np.int64), np.empty(len(chosen), dtype=np.int64)
    firsts, offsets = np.empty(len(chosen), dtype=np.int64), np.zeros(len(chosen) + 1, dtype=np.int64)
    for i in range(len(chosen)):
        sample = chosen[i]
        rows[i], labels[i] = samples[sample, _ROW], samples[sample, _LABEL]
        firsts[i] = samples[sample - 1, _STOP] if sample > 0 else 0
        offsets[i + 1] = offsets[i] + samples[sample, _STOP] - firsts[i]
    spans = spans_to_fill(offsets)
    for i in range(len(chosen)):
        for k in range(offsets[i + 1] - offsets[i]):
            place, own = offsets[i] + k, table[firsts[i] + k]
            spans.documents[place] = own[_DOCUMENT]
            spans.starts[place], spans.stops[place] = own[_FIRST_TOKEN], own[_LAST_TOKEN]
            spans.opened[place] = (own[_FLAGS] & _OPENED) != 0
            spans.closed[place] = (own[_FLAGS] & _CLOSED) != 0
    return rows, labels, spans
