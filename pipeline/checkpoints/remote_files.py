"""Files of an fsspec store, read to this machine and hashed on the way."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import xxhash

from cluster.artefacts.errors import CorruptArtefactError, StorageError
from cluster.artefacts.manifest import FileEntry, hash_file
from cluster.artefacts.private import private_cache
from cluster.artefacts.storage import Damage, storage_errors

CACHE_VARIABLE = "CLOZE_CACHE"
"""Environment variable that names the directory for copies; ~/.cache/cloze where it is not set."""
BLOCK_BYTES = 1 << 26
"""Size of a transfer; S3 takes up to 10,000 of them for a file."""
_TRANSFERS = 4


def cache_directory() -> Path:
    """CLOZE_CACHE, else ~/.cache/cloze, else a directory for temporary files."""
    chosen = os.environ.get(CACHE_VARIABLE)
    return Path(chosen) if chosen else private_cache()


def read_files(
    filesystem: Any, source: str, place: str, entries: Sequence[FileEntry], target: Path | None
) -> list[Damage | None]:
    """Read files and compare their hashes with a manifest's; what is wrong with each, None where nothing is.

    Args:
        filesystem: an fsspec file system.
        source: directory in it.
        place: the same as a URI, for error messages.
        target: where good files are put, unless they are there with the right hash; None keeps none.
    """

    def read(entry: FileEntry) -> Damage | None:
        blocks = _blocks(filesystem, f"{source}/{entry.path}", f"{place}/{entry.path}")
        return _read_one(blocks, entry, None if target is None else entry.under(target))

    with ThreadPoolExecutor(_TRANSFERS) as pool:
        return list(pool.map(read, entries))


def _read_one(blocks: Iterator[bytes], entry: FileEntry, target: Path | None) -> Damage | None:
    if target is None:
        return _read_into(blocks, entry, Path(os.devnull))
    if target.is_file() and hash_file(target) == (entry.xxh3_128, entry.size_bytes):
        return None
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}.tmp")
    try:
        with storage_errors(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            damage = _read_into(blocks, entry, temporary)
            if damage is None:
                os.replace(temporary, target)
        return damage
    finally:
        temporary.unlink(missing_ok=True)


def _read_into(blocks: Iterator[bytes], entry: FileEntry, copy: Path) -> Damage | None:
    digest = xxhash.xxh3_128()
    try:
        with copy.open("wb") as stream:
            for block in blocks:
                digest.update(block)
                stream.write(block)
    except FileNotFoundError:
        return Damage(entry.path, "missing")
    if (found := digest.hexdigest()) != entry.xxh3_128:
        return Damage(entry.path, f"xxh3_128 is {found} instead of {entry.xxh3_128}")
    return None


def _blocks(filesystem: Any, path: str, place: str) -> Iterator[bytes]:
    with (
        remote_errors(place, "read"),
        filesystem.open(path, "rb", block_size=BLOCK_BYTES, cache_type="none") as stream,
    ):
        while block := stream.read(BLOCK_BYTES):
            yield block


@contextmanager
def remote_errors(place: str, what: str) -> Iterator[None]:
    """Turn whatever a store's client raises into a StorageError; a file that is missing is left to the reader.

    Args:
        what: `read`, `write`, `move` or `delete`.
    """
    try:
        yield
    except (StorageError, CorruptArtefactError):
        raise
    except Exception as error:
        if isinstance(error, FileNotFoundError) and what != "write":
            raise
        raise StorageError(
            f"Cannot {what} {place}: {str(error) or type(error).__name__}",
            next_step="check the store's address, credentials and permissions, then run the same command again",
        ) from error
