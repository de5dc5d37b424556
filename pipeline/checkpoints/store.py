"""Where a run's checkpoints are kept: what every place can do, and a directory on a file system.

A checkpoint comes into being in a `Staging`: ranks create files in it, each its own, and tell by marks that they have;
rank 0 publishes it. Nothing that is not published is ever listed or read.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import xxhash

from cluster.artefacts.errors import CorruptArtefactError, StorageError
from cluster.artefacts.manifest import FileEntry, InputEntry, Manifest, read_manifest, write_durably
from cluster.artefacts.storage import Damage, commit, find_damage, open_artefact, remove_tree, storage_errors
from pipeline.checkpoints.checkpoint import (
    KIND,
    checkpoint_name,
    list_checkpoints,
    list_lost,
    set_aside,
    staging_path,
    step_of,
    unlisted,
)
from pipeline.runs.config import PretrainConfig
from pipeline.runs.directory import RunDirectory

PARTS_DIRECTORY = "parts"
"""What ranks tell each other while a checkpoint is written; never a part of it."""
_BLOCK_BYTES = 1 << 24


class HashingWriter:
    """Passes bytes on and hashes them on the way, so that they need not be read again."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._digest = xxhash.xxh3_128()
        self._size_bytes = 0
        self._error: Exception | None = None

    def write(self, data: bytes | memoryview) -> int:
        """Write all of `data`."""
        view = memoryview(data).cast("B")
        try:
            for start in range(0, len(view), _BLOCK_BYTES):
                block = view[start : start + _BLOCK_BYTES]
                self._stream.write(block)
                self._digest.update(block)
        except Exception as error:
            self._error = error
            raise
        self._size_bytes += len(view)
        return len(view)

    def flush(self) -> None:
        """Pass on what the stream holds back."""
        self._stream.flush()

    @contextmanager
    def own_errors(self) -> Iterator[None]:
        """Raise what the stream raised, whatever a library that wrote to it makes of that."""
        try:
            yield
        except Exception as error:
            raise self._error or error from error

    def entry(self, path: str) -> FileEntry:
        """What a manifest says of the bytes written."""
        return FileEntry(path=path, size_bytes=self._size_bytes, xxh3_128=self._digest.hexdigest())


class Staging(Protocol):
    """A checkpoint that is being written. Its ranks may be on machines that share nothing else."""

    @property
    def poll_s(self) -> float:
        """Seconds between two looks for the marks of other ranks."""
        ...

    def create(self, path: str) -> AbstractContextManager[HashingWriter]:
        """A new file; durable when the context is left."""
        ...

    def open(self, path: str) -> AbstractContextManager[BinaryIO]:
        """A file that any rank created, to be read."""
        ...

    def remove(self, paths: Collection[str]) -> None:
        """Delete files and free their space; those that are not there are passed over."""
        ...

    def mark(self, name: str, data: bytes) -> None:
        """Tell the other ranks something, durably."""
        ...

    def marks(self) -> Mapping[str, bytes]:
        """What ranks told so far, by name."""
        ...

    def publish(
        self,
        files: Sequence[FileEntry],
        config: Mapping[str, Any],
        inputs: Sequence[InputEntry],
        stats: Mapping[str, Any],
    ) -> Manifest:
        """Make it a checkpoint of these files; what lies in PARTS_DIRECTORY goes."""
        ...

    def discard(self) -> None:
        """Delete all of it."""
        ...


class CheckpointStore(Protocol):
    """The checkpoints of one run."""

    @property
    def copies(self) -> bool:
        """Whether `fetch` copies, so that every machine has to; otherwise all machines read the same files."""
        ...

    def steps(self) -> list[int]:
        """Steps of the committed checkpoints, ascending; their bytes are not checked."""
        ...

    def lost(self) -> list[int]:
        """Steps of checkpoints that lost their manifest, ascending; none where that looks like a save that runs."""
        ...

    def place(self, step: int) -> str:
        """Path or URI of a step's checkpoint, for people and for tracking."""
        ...

    def manifest(self, step: int) -> Manifest:
        """Raises CorruptArtefactError where it is missing or damaged."""
        ...

    def damage(self, step: int, *, deep: bool) -> list[Damage]:
        """Files that are not what the manifest says: by their sizes, or by their hashes too when `deep`."""
        ...

    def fetch(self, step: int, files: Collection[str] | None = None) -> Path:
        """A local directory that holds a checkpoint, or the named ones of its files, with the hashes of its manifest.

        Raises:
            CorruptArtefactError: names every file that is missing or damaged. Of the files that are not named, only
                the sizes are looked at.
        """
        ...

    def local(self, step: int) -> Path:
        """Where `fetch` puts a step on this machine; nothing is read."""
        ...

    def delete(self, step: int) -> None:
        """Delete a checkpoint; killed half way, it is none any more. Of one that is a link only the link goes.

        Raises:
            StorageError: some of it could not be deleted.
        """
        ...

    def set_aside(self, step: int) -> str:
        """Put a damaged checkpoint where nothing takes it for one; returns that place."""
        ...

    def staging(self, step: int, key: str) -> Staging:
        """Where a checkpoint is written; `key` tells this save from all others of the step."""
        ...

    def make_room(self, step: int) -> None:
        """Rank 0, before any rank writes: what stands in the way of the step is no checkpoint any more."""
        ...

    def clean(self) -> None:
        """Delete what killed saves and deletions left. Only while no save is running."""
        ...


@dataclass(frozen=True, slots=True)
class DirectoryStore:
    """Checkpoints in a directory of a file system that all ranks share."""

    directory: Path
    copies: bool = False

    def steps(self) -> list[int]:
        """See CheckpointStore."""
        return [step_of(path) for path in list_checkpoints(self.directory)]

    def lost(self) -> list[int]:
        """See CheckpointStore."""
        return [step_of(path) for path in list_lost(self.directory)]

    def place(self, step: int) -> str:
        """See CheckpointStore."""
        return str(self.local(step).resolve())

    def local(self, step: int) -> Path:
        """See CheckpointStore."""
        return self.directory / checkpoint_name(step)

    def manifest(self, step: int) -> Manifest:
        """See CheckpointStore."""
        return read_manifest(self.local(step))

    def damage(self, step: int, *, deep: bool) -> list[Damage]:
        """See CheckpointStore."""
        directory, manifest = self.local(step), self.manifest(step)
        return [*find_damage(directory, manifest, deep=deep), *unlisted(directory, manifest)]

    def fetch(self, step: int, files: Collection[str] | None = None) -> Path:
        """See CheckpointStore. The checkpoint itself: nothing is copied."""
        return open_checkpoint(self.local(step), files)

    def delete(self, step: int) -> None:
        """See CheckpointStore."""
        path = self.local(step)
        # Renamed first: half a checkpoint must never look like one.
        doomed = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.deleted")
        with suppress(FileNotFoundError), storage_errors(path):
            os.replace(path, doomed)
        # Together with what could not be deleted before, such as files that another machine still had open.
        errors = list(self._sweep(".step-*.deleted"))
        if errors:
            raise StorageError(f"Cannot delete {path}, which is no checkpoint any more: {errors[0]}")

    def set_aside(self, step: int) -> str:
        """See CheckpointStore."""
        return str(set_aside(self.local(step)))

    def staging(self, step: int, key: str) -> Staging:
        """See CheckpointStore."""
        return DirectoryStaging(staging_path(self.directory, step, key), self.local(step))

    def make_room(self, step: int) -> None:
        """See CheckpointStore. The rename that commits replaces whatever is there."""

    def clean(self) -> None:
        """See CheckpointStore."""
        for pattern in (".step-*.partial", ".step-*.deleted", ".step-*.replaced*"):
            list(self._sweep(pattern))

    def _sweep(self, pattern: str) -> Iterator[OSError]:
        """Delete what has such a name; yields what could not be."""
        for leftover in self.directory.glob(pattern):
            try:
                remove_tree(leftover)
            except FileNotFoundError:
                continue
            except OSError as error:
                yield error


def open_checkpoint(directory: Path, files: Collection[str] | None = None) -> Path:
    """`directory`, whose files, or the named ones, have the hashes of its manifest.

    Raises:
        CorruptArtefactError: names every file that is missing, damaged, or not in the manifest.
    """
    manifest = open_artefact(directory, kind=KIND, only=files)
    if foreign := unlisted(directory, manifest):
        listed = "\n".join(f"  {damage}" for damage in foreign)
        raise CorruptArtefactError(f"{directory} ({KIND}) holds files of unknown origin:\n{listed}")
    return directory


@dataclass(frozen=True, slots=True)
class DirectoryStaging:
    """A checkpoint that is being written beside its later place."""

    path: Path
    target: Path
    poll_s: float = 0.05

    @property
    def _marks(self) -> Path:
        return self.path / PARTS_DIRECTORY / "marks"

    @contextmanager
    def create(self, path: str) -> Iterator[HashingWriter]:
        """See Staging."""
        file = self.path / path
        with storage_errors(file):
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("wb") as stream:
                writer = HashingWriter(stream)
                with writer.own_errors():
                    yield writer
                stream.flush()
                os.fsync(stream.fileno())

    @contextmanager
    def open(self, path: str) -> Iterator[BinaryIO]:
        """See Staging."""
        with (self.path / path).open("rb") as stream:
            yield stream

    def remove(self, paths: Collection[str]) -> None:
        """See Staging."""
        for path in paths:
            (self.path / path).unlink(missing_ok=True)

    def mark(self, name: str, data: bytes) -> None:
        """See Staging."""
        with storage_errors(self._marks / name):
            self._marks.mkdir(parents=True, exist_ok=True)
            write_durably(self._marks / name, data)

    def marks(self) -> Mapping[str, bytes]:
        """See Staging."""
        if not self._marks.is_dir():
            return {}
        return {path.name: path.read_bytes() for path in self._marks.iterdir() if path.name[0] != "."}

    def publish(
        self,
        files: Sequence[FileEntry],
        config: Mapping[str, Any],
        inputs: Sequence[InputEntry],
        stats: Mapping[str, Any],
    ) -> Manifest:
        """See Staging."""
        with storage_errors(self.path):
            shutil.rmtree(self.path / PARTS_DIRECTORY, ignore_errors=True)
        return commit(self.path, self.target, KIND, config=config, inputs=inputs, files=files, stats=stats)

    def discard(self) -> None:
        """See Staging."""
        shutil.rmtree(self.path, ignore_errors=True)


def store_of(run: RunDirectory, config: PretrainConfig | None = None) -> CheckpointStore:
    """The checkpoints of a run, wherever its configuration keeps them; None reads it from the run's directory."""
    place = (config or run.config()).checkpoint.directory
    return DirectoryStore(run.checkpoints) if place is None else open_store(place, run.info.name)


def open_store(place: str, name: str) -> CheckpointStore:
    """The checkpoints of the run `name` below a directory or an fsspec URI."""
    scheme, separator, rest = place.partition("://")
    if separator and scheme != "file":
        from pipeline.checkpoints.remote_store import RemoteStore

        return RemoteStore.open(f"{place.rstrip('/')}/{name}")
    return DirectoryStore(Path(rest if separator else place).expanduser() / name)
