"""Hashes of all source files, computed in Ray tasks and remembered beside the artefacts."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash

from cluster.artefacts.credentials import without_credentials
from cluster.artefacts.manifest import has_seal, write_durably, write_seal
from cluster.artefacts.storage import storage_errors
from cluster.progress import progress
from cluster.runtime import require_ray, run_tasks
from data_prep.inputs import Inputs
from data_prep.sources.streams import open_file

CACHE_NAME = ".source-hashes.parquet"
HASH_TASK_BYTES = 256 << 20
"""Files are hashed in tasks of about this size."""
HASH_TASK_FILES = 4096
"""Most files of a task: opening one costs as much as reading some 10 KB."""
_DIGEST_BYTES = 16
_SCHEMA = pa.schema(
    [("path", pa.large_binary()), ("version", pa.large_binary()), ("digest", pa.binary(_DIGEST_BYTES))]
)
_BLOCK_BYTES = 4 << 20
_SAVE_INTERVAL_S = 30.0


def hash_inputs(inputs: Inputs, directory: Path) -> list[str]:
    """xxh3_128 hex digest of every file, computed in Ray tasks.

    Digests are remembered in `directory` by path and version, so that only new and changed files are read
    again. A file that was altered without changing its size and time of modification goes unnoticed.
    """
    cache = _Cache(inputs, directory)
    pending = np.flatnonzero(~cache.is_known)
    if len(pending):
        with storage_errors(directory):
            _hash_pending(inputs, pending, cache)
    digests = [digest.tobytes().hex() for digest in cache.digests]
    del cache
    # Arrow keeps what it needed to look a million files up for the next time.
    pa.default_memory_pool().release_unused()
    return digests


class _Cache:
    """The digests of the inputs, as far as they are known."""

    def __init__(self, inputs: Inputs, directory: Path) -> None:
        self._path = directory / CACHE_NAME
        self._paths = _column([without_credentials(file.path) for file in inputs.files])
        self._versions = _column(inputs.versions)
        self.digests = np.zeros((len(inputs), _DIGEST_BYTES), dtype=np.uint8)
        self.is_known = np.zeros(len(inputs), dtype=bool)
        self._others = _SCHEMA.empty_table()
        """Remembered digests of files that are no inputs now."""
        if not has_seal(self._path):
            return
        try:
            found = pq.read_table(str(self._path), page_checksum_verification=True).cast(_SCHEMA)
        except (OSError, ValueError):  # among them Arrow's own errors
            return  # it only saves time
        if len(found):
            self._take(found)

    def _take(self, found: pa.Table) -> None:
        places = _call("index_in", self._paths, value_set=found["path"])
        then = found["version"].take(places)
        known_versions = _call("equal", then, self._versions).fill_null(False)
        self.is_known[:] = known_versions.to_numpy(zero_copy_only=False)
        known = found["digest"].take(_call("filter", places, pa.array(self.is_known))).combine_chunks()
        if len(known):
            values = np.frombuffer(known.buffers()[1], dtype=np.uint8).reshape(-1, _DIGEST_BYTES)
            self.digests[self.is_known] = values[known.offset : known.offset + len(known)]
        self._others = found.filter(_call("invert", _call("is_in", found["path"], value_set=self._paths)))

    def write(self) -> None:
        """Remember what is known."""
        for leftover in self._path.parent.glob(f".{CACHE_NAME}.*.tmp"):
            leftover.unlink(missing_ok=True)
        digests = pa.FixedSizeBinaryArray.from_buffers(
            pa.binary(_DIGEST_BYTES), len(self.digests), [None, pa.py_buffer(self.digests)]
        )
        own = pa.table([self._paths, self._versions, digests], schema=_SCHEMA)
        table = pa.concat_tables([self._others, own.filter(pa.array(self.is_known))])
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, compression="zstd", use_dictionary=False, write_page_checksum=True)
        write_durably(self._path, sink.getvalue().to_pybytes())
        write_seal(self._path)


def _call(name: str, *columns: Any, **options: Any) -> Any:
    """A function of Arrow, whose types are not declared."""
    return getattr(pc, name)(*columns, **options)


def _column(texts: list[str]) -> pa.Array:
    return pa.array(texts, pa.large_string()).cast(pa.large_binary())


def _hash_pending(inputs: Inputs, pending: np.ndarray, cache: _Cache) -> None:
    def arguments(batch: np.ndarray) -> tuple[list[str]]:
        return ([inputs.files[number].path for number in batch.tolist()],)

    def who(batch: np.ndarray) -> str:
        first = without_credentials(inputs.files[batch[0]].path)
        return f"The task that hashes {first} and the files after it"

    require_ray()
    saved = time.monotonic()
    with progress("hashing source files", len(pending)) as advance:
        try:
            batches = _batches(inputs, pending)
            for batch, digests in run_tasks(hash_files, batches, arguments, who):
                if digests is None:
                    continue
                cache.digests[batch] = np.frombuffer(digests, dtype=np.uint8).reshape(-1, _DIGEST_BYTES)
                cache.is_known[batch] = True
                advance(len(batch))
                if time.monotonic() - saved > _SAVE_INTERVAL_S:
                    cache.write()
                    saved = time.monotonic()
        finally:
            cache.write()


def _batches(inputs: Inputs, pending: np.ndarray) -> Iterator[np.ndarray]:
    first = size = 0
    for place, number in enumerate(pending.tolist()):
        size += inputs.sizes[number]
        if size >= HASH_TASK_BYTES or place + 1 - first >= HASH_TASK_FILES:
            yield pending[first : place + 1]
            first, size = place + 1, 0
    if first < len(pending):
        yield pending[first:]


def hash_files(paths: Sequence[str]) -> bytes:
    """Body of the Ray task: the bytes as they are stored, compressed or not; the digests one after the other."""
    digests = []
    for path in paths:
        digest = xxhash.xxh3_128()
        with open_file(path) as stream:
            while block := stream.read(_BLOCK_BYTES):
                digest.update(block)
        digests.append(digest.digest())
    return b"".join(digests)
