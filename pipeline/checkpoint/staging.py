"""A checkpoint that is being written: files of all ranks in a staging directory, their done-markers, and the commit.

Ranks create files, each rank its own, and mark them as done for rank 0, which publishes the checkpoint.
On a disk the staging directory lies beside its target and is renamed. For an object store every file is written to this
machine, uploaded to its place and removed here; the manifest is uploaded last.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import xxhash

from cluster.artefacts.errors import StorageError
from cluster.artefacts.manifest import (
    MANIFEST_NAME,
    FileEntry,
    InputEntry,
    Manifest,
    make_manifest,
    manifest_bytes,
    signed,
    write_durably,
)
from cluster.artefacts.remote import Remote
from cluster.artefacts.signatures import is_signing
from cluster.artefacts.storage import Damage, commit, storage_errors
from pipeline.checkpoint.checkpoint import KIND

PARTS_DIRECTORY = "parts"
"""Markers of the ranks, and their shares of files, while a checkpoint is written; removed before the commit."""
_BLOCK_BYTES = 1 << 24


class HashingWriter:
    """A binary stream that hashes what is written to it, so that files need not be read again for their hash."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._digest = xxhash.xxh3_128()
        self._sha256 = hashlib.sha256() if is_signing() else None
        self._size_bytes = 0
        self.error: Exception | None = None
        """The error of the stream, if it raised one."""

    def write(self, data: bytes | memoryview) -> int:
        """Write all of `data`; returns its size in bytes."""
        view = memoryview(data).cast("B")
        try:
            for start in range(0, len(view), _BLOCK_BYTES):
                block = view[start : start + _BLOCK_BYTES]
                self._stream.write(block)
                self._digest.update(block)
                if self._sha256 is not None:
                    self._sha256.update(block)
        except Exception as error:
            self.error = error
            raise
        self._size_bytes += len(view)
        return len(view)

    def flush(self) -> None:
        """Flush the stream below."""
        self._stream.flush()

    def entry(self, path: str) -> FileEntry:
        """The manifest's entry of the bytes written."""
        sha256 = None if self._sha256 is None else self._sha256.hexdigest()
        digest = self._digest.hexdigest()
        return FileEntry(path=path, size_bytes=self._size_bytes, xxh3_128=digest, sha256=sha256)


@dataclass(frozen=True, slots=True)
class Staging:
    """One save of one step. Its ranks may be on machines that share nothing but the store."""

    path: Path
    """Staging directory on this machine; shared by all ranks unless there is a `remote`."""
    target: Path
    """Directory of the checkpoint; unused with a `remote`."""
    key: str
    """Distinguishes this save from all others of the step."""
    remote: Remote | None = None

    @property
    def poll_s(self) -> float:
        """Seconds between two looks for the markers of other ranks."""
        return 0.05 if self.remote is None else 1.0

    @contextmanager
    def create(self, path: str) -> Iterator[HashingWriter]:
        """A new file; durable when the context is left."""
        file = self.path / path
        with storage_errors(file):
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("wb") as stream:
                writer = HashingWriter(stream)
                try:
                    yield writer
                except Exception as error:
                    # A library that wrote to it (torch.save) raised another error than the stream.
                    raise writer.error or error from error
                stream.flush()
                if self.remote is None:
                    os.fsync(stream.fileno())
        if self.remote is not None:
            self.remote.upload(file, self._name(path))
            file.unlink()

    @contextmanager
    def open(self, path: str) -> Iterator[BinaryIO]:
        """A file that any rank created, to be read."""
        if self.remote is None:
            with (self.path / path).open("rb") as stream:
                yield stream
        else:
            with self.remote.opened(self._name(path)) as stream:
                yield stream

    def remove(self, paths: Collection[str]) -> None:
        """Delete files and free their space; missing ones are passed over."""
        for path in paths:
            (self.path / path).unlink(missing_ok=True)
        if self.remote is not None:
            self.remote.remove([self._name(path) for path in paths])

    def mark(self, name: str, data: bytes) -> None:
        """Write a marker for the other ranks, durably."""
        if self.remote is not None:
            self.remote.write(f"{self._name(_MARKERS)}/{name}", data)
            return
        marker = self.path / _MARKERS / name
        with storage_errors(marker):
            marker.parent.mkdir(parents=True, exist_ok=True)
            write_durably(marker, data)

    def marks(self) -> Mapping[str, bytes]:
        """The markers written so far, by name."""
        if self.remote is not None:
            directory, remote = self._name(_MARKERS), self.remote
            return {name: remote.read(f"{directory}/{name}") for name in remote.names(directory)}
        directory = self.path / _MARKERS
        if not directory.is_dir():
            return {}
        return {path.name: path.read_bytes() for path in directory.iterdir() if path.name[0] != "."}

    def publish(
        self,
        files: Sequence[FileEntry],
        config: Mapping[str, Any],
        inputs: Sequence[InputEntry],
        stats: Mapping[str, Any],
    ) -> Manifest:
        """Commit the checkpoint with these files; PARTS_DIRECTORY is removed.

        Raises:
            StorageError: the store refuses, or does not hold what was written.
        """
        if self.remote is None:
            with storage_errors(self.path):
                shutil.rmtree(self.path / PARTS_DIRECTORY, ignore_errors=True)
            return commit(
                self.path, self.target, KIND, config=config, inputs=inputs, files=files, stats=stats
            )
        manifest = make_manifest(KIND, config=config, inputs=inputs, files=files, stats=stats)
        known = {entry.path for entry in files}
        step, sizes = self.target.name, self.remote.sizes(self.target.name)
        self.remote.remove([f"{step}/{name}" for name in sizes if name not in known])
        if damages := wrong_sizes(manifest, sizes):
            raise StorageError(
                f"{self.remote.place(step)} does not hold what was written: {damages[0]}.",
                kept="the earlier checkpoints",
            )
        remote = self.remote
        manifest = signed(manifest, lambda entry: remote.sha256(f"{step}/{entry.path}"))
        remote.write(f"{step}/{MANIFEST_NAME}", manifest_bytes(manifest))
        shutil.rmtree(self.path, ignore_errors=True)
        return manifest

    def discard(self) -> None:
        """Delete everything of this save."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self.remote is not None:
            self.remote.remove_directory(self.target.name, MANIFEST_NAME)

    def _name(self, path: str) -> str:
        """The name in the store. Parts are kept apart by save: the parts of a killed save must never be read."""
        inner = path.removeprefix(f"{PARTS_DIRECTORY}/")
        own = path if inner == path else f"{PARTS_DIRECTORY}/{self.key}/{inner}"
        return f"{self.target.name}/{own}"


_MARKERS = f"{PARTS_DIRECTORY}/marks"


def wrong_sizes(manifest: Manifest, sizes: Mapping[str, int]) -> list[Damage]:
    """Files of a manifest that are missing, or have another size, among files of the given sizes in bytes."""
    return [
        Damage(
            entry.path,
            f"{sizes[entry.path]} bytes instead of {entry.size_bytes}" if entry.path in sizes else "missing",
        )
        for entry in manifest.files
        if sizes.get(entry.path) != entry.size_bytes
    ]
