"""Hashes of all source files, computed in Ray tasks and remembered beside the artefacts."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from cluster.artefacts.credentials import without_credentials
from cluster.artefacts.manifest import write_durably
from cluster.artefacts.seals import has_seal, write_seal
from cluster.artefacts.storage import storage_errors
from cluster.progress import progress
from cluster.runtime import require_ray, run_tasks
from data_prep.inputs import Input
from data_prep.sources.streams import open_file

CACHE_NAME = ".source-hashes.parquet"
HASH_TASK_BYTES = 256 << 20
"""Files are hashed in tasks of about this size."""
HASH_TASK_FILES = 4096
"""Most files of a task: opening one costs as much as reading some 10 KB."""
_SCHEMA = pa.schema([("path", pa.large_binary()), ("version", pa.large_binary()), ("digest", pa.binary(16))])
_BLOCK_BYTES = 4 << 20
_SAVE_INTERVAL_S = 30.0


def hash_inputs(inputs: Sequence[Input], directory: Path) -> dict[str, str]:
    """xxh3_128 hex digest of every file by its path, computed in Ray tasks.

    Digests are remembered in `directory` by path and version, so that only new and changed files are read
    again. A file that was altered without changing its size and time of modification goes unnoticed.
    """
    known = _read_cache(directory / CACHE_NAME)
    keys = [_key(own) for own in inputs]
    pending = [own for key, own in zip(keys, inputs, strict=True) if known.get(key, ("",))[0] != own.version]
    if pending:
        with storage_errors(directory):
            _hash_pending(pending, known, directory / CACHE_NAME)
    return {own.file.path: known[key][1].hex() for key, own in zip(keys, inputs, strict=True)}


Known = dict[str, tuple[str, bytes]]
"""Version and digest of every file that was ever hashed, by its path without credentials."""


def _key(own: Input) -> str:
    return without_credentials(own.file.path)


def _read_cache(path: Path) -> Known:
    if not has_seal(path):
        return {}
    try:
        columns = pq.read_table(str(path), page_checksum_verification=True).cast(_SCHEMA).to_pydict().values()
        return {
            path.decode(): (version.decode(), digest) for path, version, digest in zip(*columns, strict=True)
        }
    except (OSError, ValueError):  # among them Arrow's own errors
        return {}  # it only saves time


def _write_cache(path: Path, known: Known) -> None:
    for leftover in path.parent.glob(f".{CACHE_NAME}.*.tmp"):
        leftover.unlink(missing_ok=True)
    columns = {
        "path": [own.encode() for own in known],
        "version": [version.encode() for version, _ in known.values()],
        "digest": [digest for _, digest in known.values()],
    }
    sink = pa.BufferOutputStream()
    pq.write_table(
        pa.table(columns, schema=_SCHEMA),
        sink,
        compression="zstd",
        use_dictionary=False,
        write_page_checksum=True,
    )
    write_durably(path, sink.getvalue().to_pybytes())
    write_seal(path)


def _hash_pending(pending: Sequence[Input], known: Known, cache: Path) -> None:
    """Hash files and add them to what is known; what was hashed before a failure is kept."""

    def arguments(batch: Sequence[Input]) -> tuple[list[str]]:
        return ([own.file.path for own in batch],)

    def who(batch: Sequence[Input]) -> str:
        return f"The task that hashes {_key(batch[0])} and the files after it"

    require_ray()
    saved = time.monotonic()
    with progress("hashing source files", len(pending)) as advance:
        try:
            for batch, digests in run_tasks(hash_files, _batches(pending), arguments, who):
                if digests is None:
                    continue
                for own, digest in zip(batch, digests, strict=True):
                    known[_key(own)] = own.version, digest
                advance(len(batch))
                if time.monotonic() - saved > _SAVE_INTERVAL_S:
                    _write_cache(cache, known)
                    saved = time.monotonic()
        finally:
            _write_cache(cache, known)


def _batches(pending: Sequence[Input]) -> Iterator[Sequence[Input]]:
    first = size = 0
    for place, own in enumerate(pending, start=1):
        size += own.size_bytes
        if size >= HASH_TASK_BYTES or place - first >= HASH_TASK_FILES:
            yield pending[first:place]
            first, size = place, 0
    if first < len(pending):
        yield pending[first:]


def hash_files(paths: Sequence[str]) -> list[bytes]:
    """Body of the Ray task: digests of the bytes as they are stored, compressed or not."""
    digests = []
    for path in paths:
        digest = xxhash.xxh3_128()
        with open_file(path) as stream:
            while block := stream.read(_BLOCK_BYTES):
                digest.update(block)
        digests.append(digest.digest())
    return digests
