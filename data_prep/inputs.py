"""The source files of a preparation: listed, hashed, grouped into shards."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson
import xxhash

from cluster.artefacts.credentials import without_credentials
from cluster.artefacts.errors import ClozeError, MissingInputError
from cluster.artefacts.manifest import seal, unseal, write_durably
from cluster.artefacts.storage import storage_errors
from cluster.progress import progress
from cluster.runtime import require_ray, tasks_in_flight
from data_prep.config import PreparationConfig
from data_prep.sources import source_of
from data_prep.sources.base import FilePart, SourceConfig, SourceFile
from data_prep.sources.streams import open_file

CACHE_NAME = ".source-hashes.json"
MIN_PART_BYTES = 1 << 20
"""Smaller files are not split, however small shards are: a task costs more than reading this."""
HASH_TASK_BYTES = 256 << 20
"""Files are hashed in tasks of about this size."""
_BLOCK_BYTES = 4 << 20
_SAVE_INTERVAL_S = 30.0


@dataclass(frozen=True, slots=True)
class Input:
    """One source file."""

    source: SourceConfig
    file: SourceFile
    size_bytes: int
    version: str
    """Changes when the file does: its size and time of modification, or what the remote store offers."""


def list_inputs(config: PreparationConfig) -> list[Input]:
    """Every source file in the order in which it is stored: sources as configured, files by name.

    Raises:
        MissingInputError: a path or pattern matches nothing.
    """
    return [
        Input(source, file, *_size_and_version(file.path))
        for source in config.sources
        for file in source_of(source).list_files(source)
    ]


def stored_bytes(path: str) -> int:
    """Size of a source file as it is stored.

    Raises:
        MissingInputError: it is gone.
    """
    return _size_and_version(path)[0]


def _size_and_version(path: str) -> tuple[int, str]:
    try:
        if "://" not in path:
            status = os.stat(path)
            return status.st_size, f"{status.st_size}:{status.st_mtime_ns}"
        import fsspec

        file_system, remote = fsspec.core.url_to_fs(path)
        return int(file_system.size(remote) or 0), str(file_system.ukey(remote))
    except FileNotFoundError as error:
        raise MissingInputError(
            f"{path} was listed but is gone.", next_step="restore the file, or correct the source's `paths`"
        ) from error


@dataclass(frozen=True, slots=True)
class InputPart:
    """A source file, or a part of a big one."""

    input: Input
    part: FilePart

    @property
    def size_bytes(self) -> int:
        """Bytes of the part, as they are stored."""
        end = self.input.size_bytes if self.part.end is None else self.part.end
        return end - self.part.start


def group_inputs(inputs: Sequence[Input], shard_bytes: int) -> list[tuple[InputPart, ...]]:
    """Cut the list of files into shards of at most `shard_bytes`, each of one source.

    A bigger file is split where its source can split it, and is a shard by itself where it cannot.
    """
    groups: list[list[InputPart]] = []
    size = 0
    for item in _parts(inputs, shard_bytes):
        fits = (
            groups
            and groups[-1][0].input.source == item.input.source
            and size + item.size_bytes <= shard_bytes
        )
        if not fits:
            groups.append([])
            size = 0
        groups[-1].append(item)
        size += item.size_bytes
    return [tuple(group) for group in groups]


def _parts(inputs: Sequence[Input], shard_bytes: int) -> Iterator[InputPart]:
    for item in inputs:
        parts = [FilePart(item.file)]
        part_bytes = max(shard_bytes, MIN_PART_BYTES)
        if item.size_bytes > part_bytes:
            parts = source_of(item.source).split(item.source, item.file, item.size_bytes, part_bytes)
        yield from (InputPart(item, part) for part in parts)


def hash_inputs(inputs: Sequence[Input], directory: Path) -> list[str]:
    """xxh3_128 hex digest of every file, computed in Ray tasks.

    Digests are remembered in `directory` by path and version, so that only new and changed files are read
    again. A file that was altered without changing its size and time of modification goes unnoticed.
    """
    known = _load_cache(directory)
    pending = [item for item in inputs if known.get(_key(item), ("", ""))[0] != item.version]
    if pending:
        with storage_errors(directory):
            _hash_pending(pending, known, directory)
    return [known[_key(item)][1] for item in inputs]


def _key(item: Input) -> str:
    return without_credentials(item.file.path)


def _hash_pending(pending: Sequence[Input], known: dict[str, tuple[str, str]], directory: Path) -> None:
    require_ray()
    saved = time.monotonic()
    with progress("hashing source files", len(pending)) as advance:
        try:
            for batch, digests in _run_tasks(_batches(pending)):
                for item, digest in zip(batch, digests, strict=True):
                    known[_key(item)] = (item.version, digest)
                advance(len(batch))
                if time.monotonic() - saved > _SAVE_INTERVAL_S:
                    _save_cache(directory, known)
                    saved = time.monotonic()
        finally:
            _save_cache(directory, known)


def _batches(inputs: Iterable[Input]) -> Iterator[list[Input]]:
    batch: list[Input] = []
    size = 0
    for item in inputs:
        batch.append(item)
        size += item.size_bytes
        if size >= HASH_TASK_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _run_tasks(batches: Iterable[list[Input]]) -> Iterator[tuple[list[Input], list[str]]]:
    """Hash batches of files, a bounded number at a time, in any order."""
    import ray
    from ray.exceptions import RayTaskError

    remote = ray.remote(num_cpus=1)(_hash_paths)
    window = tasks_in_flight()
    running = {}
    waiting = iter(batches)
    exhausted = False
    while running or not exhausted:
        while not exhausted and len(running) < window:
            batch = next(waiting, None)
            exhausted = batch is None
            if batch is not None:
                running[remote.remote([item.file.path for item in batch])] = batch
        if running:
            (ready, *_), _ = ray.wait(list(running), num_returns=1)
            try:
                yield running.pop(ready), ray.get(ready)
            except RayTaskError as error:
                if isinstance(error.cause, ClozeError):
                    raise error.cause from None
                raise


def _hash_paths(paths: Sequence[str]) -> list[str]:
    """Body of the Ray task: the bytes as they are stored, compressed or not."""
    digests = []
    for path in paths:
        digest = xxhash.xxh3_128()
        with open_file(path) as stream:
            while block := stream.read(_BLOCK_BYTES):
                digest.update(block)
        digests.append(digest.hexdigest())
    return digests


def _load_cache(directory: Path) -> dict[str, tuple[str, str]]:
    try:
        cached = unseal(orjson.loads((directory / CACHE_NAME).read_bytes()))
        return {path: (version, digest) for path, (version, digest) in cached["files"].items()}
    except (OSError, ValueError, KeyError, AttributeError):
        return {}  # it only saves time


def _save_cache(directory: Path, known: Mapping[str, tuple[str, str]]) -> None:
    for leftover in directory.glob(f".{CACHE_NAME}.*.tmp"):
        leftover.unlink(missing_ok=True)
    write_durably(directory / CACHE_NAME, orjson.dumps(seal({"files": dict(known)})))
