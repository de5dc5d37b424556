"""The index of an epoch on disk, in blocks of consecutive samples, each an artefact of its own.

`samples.npy` [samples, 3] has for each sample its row, its pair label (-1 without pairs) and the number of slices up to
its end in the block; `slices.npy` [slices, 4] has for each slice its document, first token, one past the last, flags.
A block is verified when it is read: nothing damaged is ever used, and nothing takes longer for more samples.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cluster.artefacts.errors import ClozeError
from cluster.artefacts.storage import commit, open_artefact
from pipeline.samples.rows import EpochIndex, Rows, Slices, index_type

KIND = "epoch_index"
BLOCK = 1 << 16
"""Samples: written or read in a fraction of a second, and a billion samples are some ten thousand blocks."""
_SAMPLES, _SLICES = "samples.npy", "slices.npy"
_ROW, _LABEL, _STOP = 0, 1, 2
"""Columns of `Block.samples`; the last counts slices."""
_OPENED, _CLOSED = 1, 2
"""Flags of slices."""


class DamagedBlockError(Exception):
    """A block that cannot be read as it was written."""

    def __init__(self, block: int, why: str) -> None:
        super().__init__(why)
        self.block = block


class Block(NamedTuple):
    """Consecutive samples of an epoch."""

    samples: np.ndarray
    """[samples, 3] integers; see above."""
    slices: np.ndarray
    """[slices, 4] integers of the same type; see above."""

    @property
    def size_bytes(self) -> int:
        """Bytes on disk, but for the headers."""
        return self.samples.nbytes + self.slices.nbytes

    def look_up(self, places: np.ndarray) -> Rows:
        """The rows at some int64 places of the block, in any order."""
        chosen = self.samples[places].astype(np.int64)
        firsts = np.where(places > 0, self.samples[places - 1, _STOP], 0)
        offsets = np.concatenate([[0], np.cumsum(chosen[:, _STOP] - firsts)])
        own = np.repeat(firsts - offsets[:-1], np.diff(offsets)) + np.arange(offsets[-1])
        documents, starts, stops, flags = np.ascontiguousarray(self.slices[own].T, dtype=np.int64)
        slices = Slices(offsets, documents, starts, stops, (flags & _OPENED) != 0, (flags & _CLOSED) != 0)
        has_labels = len(chosen) and chosen[0, _LABEL] >= 0
        return Rows(chosen[:, _ROW].copy(), slices, chosen[:, _LABEL].copy() if has_labels else None)

    @classmethod
    def join(cls, blocks: list[Block]) -> Block:
        """Blocks one after the other, as one."""
        if len(blocks) == 1:
            return blocks[0]
        samples = np.concatenate([block.samples for block in blocks])
        before = np.cumsum([0, *(len(block.slices) for block in blocks[:-1])])
        samples[:, _STOP] += np.repeat(before, [len(block.samples) for block in blocks]).astype(samples.dtype)
        return cls(samples, np.concatenate([block.slices for block in blocks]))


def num_blocks(num_samples: int) -> int:
    """Blocks of an epoch."""
    return -(-num_samples // BLOCK)


def block_directory(epoch: Path, number: int) -> Path:
    """Where a block of the index in the directory `epoch` lies."""
    return epoch / f"block-{number:05d}"


def make_block(index: EpochIndex, number: int, num_samples: int, num_documents: int) -> Block:
    """A block of an epoch's index.

    Args:
        num_samples: of the epoch.
        num_documents: of the store; decides the integer type.
    """
    first = number * BLOCK
    rows, slices, labels = index.look_up(np.arange(first, min(first + BLOCK, num_samples)))
    dtype = index_type(max(num_documents, num_samples) + 1)
    flags = _OPENED * slices.opened + _CLOSED * slices.closed
    return Block(
        _table(dtype, rows, np.full_like(rows, -1) if labels is None else labels, slices.offsets[1:]),
        _table(dtype, slices.documents, slices.starts, slices.stops, flags),
    )


def write_block(block: Block, staging: Path, directory: Path, identity: Mapping[str, Any]) -> None:
    """Commit a block as the artefact `directory`; its files are gathered in the empty directory `staging`.

    Args:
        identity: the dataset, part, epoch and number of the block.

    Raises:
        StorageError, OSError: the file system refused.
    """
    np.save(staging / _SAMPLES, block.samples)
    np.save(staging / _SLICES, block.slices)
    commit(staging, directory, KIND, config=identity)


def read_block(directory: Path, number: int, identity: Mapping[str, Any]) -> Block:
    """Read and verify block `number`.

    Raises:
        DamagedBlockError: it cannot be read as it was written, or has another identity.
    """
    try:
        found = open_artefact(directory, kind=KIND).config
        samples, slices = (np.load(directory / name, allow_pickle=False) for name in (_SAMPLES, _SLICES))
    except (ClozeError, OSError, ValueError) as error:
        raise DamagedBlockError(number, str(error)) from error
    if found != identity:
        raise DamagedBlockError(number, f"{directory} holds something else: {found}.")
    return Block(samples, slices)


def _table(dtype: type[np.signedinteger], *columns: np.ndarray) -> np.ndarray:
    """[n, columns] from columns of n integers."""
    return np.stack(columns, axis=1).astype(dtype)
