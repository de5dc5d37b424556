"""The result of deduplication: per document shard, the numbers of the rows that are kept."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np

from cluster.errors import CorruptArtefactError
from data_prep.layout import REPAIR
from data_prep.token_writer import write_if_changed


def kept_files(num_shards: int) -> list[str]:
    """File names, in the order of the document shards."""
    return [f"kept-{number:05d}-of-{num_shards:05d}.npy" for number in range(num_shards)]


def write_kept(path: Path, rows: np.ndarray) -> None:
    """Write the ascending numbers of the kept rows as a uint32 `.npy`."""
    buffer = io.BytesIO()
    np.save(buffer, rows.astype(np.uint32))
    write_if_changed(path, buffer.getvalue())


def load_kept(path: Path) -> np.ndarray:
    """[kept] int64 ascending row numbers in the document shard.

    Raises:
        CorruptArtefactError: the file is missing or unreadable.
    """
    try:
        return np.load(path, allow_pickle=False).astype(np.int64)
    except (OSError, ValueError, EOFError) as error:
        raise CorruptArtefactError(f"{path} cannot be read: {error}", next_step=REPAIR) from error


def read_kept(directory: Path, shard: int) -> np.ndarray:
    """[kept] int64 row numbers of one shard of a `dedup` artefact.

    Raises:
        CorruptArtefactError: the shard's file is missing or unreadable.
    """
    found = sorted(directory.glob(f"kept-{shard:05d}-of-*.npy"))
    if not found:
        raise CorruptArtefactError(
            f"{directory} has no kept rows of document shard {shard}.", next_step=REPAIR
        )
    return load_kept(found[0])
