"""The checkpoints of a run, in a directory that all ranks share, and one that is being written.

Ranks create files in a staging directory, each rank its own, and mark them as done for rank 0, which publishes the
checkpoint: the staging directory lies beside its target and is renamed. `object_store.py` keeps them elsewhere.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import uuid
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, ClassVar

import xxhash

from cluster.artefacts.errors import CorruptArtefactError, CorruptCheckpointError, StorageError
from cluster.artefacts.manifest import FileEntry, Manifest, read_manifest, write_durably
from cluster.artefacts.signatures import is_signing
from cluster.artefacts.storage import (
    Damage,
    commit_manifest,
    find_damage,
    free_name,
    is_committed,
    open_artefact,
    remove_tree,
    storage_errors,
)
from pipeline.checkpoint.checkpoint import (
    CHECKPOINT_NAME,
    KIND,
    checkpoint_name,
    evaluated,
    list_checkpoints,
    step_of,
    unlisted,
)

PARTS_DIRECTORY = "parts"
"""Markers of the ranks, and their shares of files, while a checkpoint is written; removed before the commit."""
MARKERS_DIRECTORY = f"{PARTS_DIRECTORY}/marks"
_BLOCK_BYTES = 1 << 24


@dataclass(frozen=True)
class CheckpointStore:
    """The checkpoints of one run, in a directory that all ranks share. Unpublished ones are never listed or read."""

    directory: Path
    """Holds the checkpoints."""
    _evaluated: dict[int, tuple[str, dict[str, float]]] = field(
        default_factory=dict, compare=False, repr=False, kw_only=True
    )
    """By step, the result of `evaluated`."""

    copies: ClassVar[bool] = False
    """Whether `fetch` copies files to this machine; if not, all machines read the same files."""

    def steps(self) -> list[int]:
        """Steps of the committed checkpoints, ascending; their bytes are not checked."""
        return [step_of(path) for path in list_checkpoints(self.directory)]

    def lost(self) -> list[int]:
        """Steps of checkpoints that lost their manifest, ascending."""
        found = [path for path in self.directory.glob("step-*") if CHECKPOINT_NAME.search(path.name)]
        return sorted(step_of(path) for path in found if path.is_dir() and not is_committed(path))

    def place(self, step: int) -> str:
        """Path or URI of a checkpoint, for people and for tracking."""
        return str(self.local(step).resolve())

    def local(self, step: int) -> Path:
        """The path of a checkpoint, or of its copy, on this machine; nothing is read."""
        return self.directory / checkpoint_name(step)

    def read_manifest(self, step: int) -> Manifest:
        """The manifest of a checkpoint, whatever it says.

        Raises:
            CorruptArtefactError: it is missing or damaged.
        """
        return read_manifest(self.local(step))

    def manifest(self, step: int) -> Manifest:
        """The manifest of a checkpoint.

        Raises:
            CorruptArtefactError: it is missing or damaged.
            CorruptCheckpointError: it is of another step than its directory's name says.
        """
        manifest = self.read_manifest(step)
        if manifest.kind != KIND:
            raise CorruptArtefactError(f"{self.place(step)} holds {manifest.kind}, but {KIND} is needed.")
        if (own := manifest.config.get("step")) != step:
            raise CorruptCheckpointError(
                f"{self.place(step)} is a checkpoint of step {own}, whatever its name says.",
                kept="everything in it",
                next_step="find out who put it there, and delete it, or give it the name of its step",
            )
        return manifest

    def evaluated(self, step: int, *, again: bool = False) -> tuple[str, dict[str, float]]:
        """The deciding metric and all measured metrics by name; cached, because every save compares them.

        Args:
            again: do not use the cache, because the step may have been saved again.

        Raises:
            CorruptArtefactError: the manifest is missing or damaged.
        """
        if again or step not in self._evaluated:
            self._evaluated[step] = evaluated(self.manifest(step).stats)
        return self._evaluated[step]

    def damage(self, step: int, manifest: Manifest, *, deep: bool) -> list[Damage]:
        """Files of a checkpoint that differ from its manifest in size, or when `deep` in their hash."""
        directory = self.local(step)
        return [*find_damage(directory, manifest, deep=deep), *unlisted(directory, manifest)]

    def fetch(self, step: int, files: Collection[str] | None = None) -> Path:
        """A local directory that holds a checkpoint, or the named ones of its files, with the hashes of its manifest.

        Raises:
            CorruptArtefactError: names every file that is missing or damaged. Of the files that are not named, only
                the sizes are compared.
            CorruptCheckpointError: its directory is named for another step than its manifest.
            StorageError: there is no room for the copy.
        """
        self.manifest(step)
        return open_checkpoint(self.local(step), files)

    def delete(self, step: int) -> None:
        """Delete a checkpoint; a deletion that is killed leaves no checkpoint. A link is removed, not its target.

        Raises:
            StorageError: some of it could not be deleted.
        """
        path = self.local(step)
        # Renamed first: half a checkpoint must never look like one.
        doomed = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.deleted")
        with suppress(FileNotFoundError), storage_errors(path):
            os.replace(path, doomed)
        # Together with what could not be deleted before, such as files that another machine still had open.
        errors = list(self._sweep(".step-*.deleted"))
        if errors:
            raise StorageError(
                f"Cannot delete all files of {path}, which is not listed any more: {errors[0]}"
            )

    def set_aside(self, step: int, why: str = "corrupt") -> str:
        """Rename a checkpoint to `step-*.WHY`, so that it is not listed; returns its new place."""
        place = self.local(step)
        return str(place.rename(free_name(place.with_name(f"{place.name}.{why}"))))

    def staging(self, step: int, key: str) -> Staging:
        """The staging area of a checkpoint; `key` distinguishes this save from all others of the step."""
        name = checkpoint_name(step)
        return Staging(self.directory / f".{name}.{key}.partial", self.directory / name)

    def make_room(self, step: int) -> None:
        """On rank 0, before any rank writes: invalidate an existing checkpoint of this step, where the commit does not
        replace it by a rename as here."""

    def clean(self) -> None:
        """Delete the remains of killed saves and deletions. Only while no save is running."""
        for pattern in (".step-*.partial", ".step-*.deleted", ".step-*.replaced*"):
            list(self._sweep(pattern))

    def _sweep(self, pattern: str) -> Iterator[OSError]:
        """Delete the directories that match a pattern; yields the errors of those that could not be deleted."""
        for leftover in self.directory.glob(pattern):
            try:
                remove_tree(leftover)
            except FileNotFoundError:
                continue
            except OSError as error:
                yield error


@dataclass(frozen=True)
class Staging:
    """One save of one step, in a directory that all ranks share."""

    path: Path
    """Directory where files are written."""
    target: Path
    """Directory of the checkpoint."""

    poll_s: ClassVar[float] = 0.05
    """Seconds between two looks for the markers of other ranks."""

    def create(self, path: str) -> AbstractContextManager[HashingWriter]:
        """A new file; durable when the context is left."""
        return created(self.path / path, durable=True)

    @contextmanager
    def open(self, path: str) -> Iterator[BinaryIO]:
        """A file that any rank created, to be read."""
        with (self.path / path).open("rb") as stream:
            yield stream

    def remove(self, paths: Collection[str]) -> None:
        """Delete files and free their space; missing ones are passed over."""
        for path in paths:
            (self.path / path).unlink(missing_ok=True)

    def mark(self, name: str, data: bytes) -> None:
        """Write a marker for the other ranks, durably."""
        marker = self.path / MARKERS_DIRECTORY / name
        with storage_errors(marker):
            marker.parent.mkdir(parents=True, exist_ok=True)
            write_durably(marker, data)

    def marks(self) -> Mapping[str, bytes]:
        """The markers written so far, by name."""
        directory = self.path / MARKERS_DIRECTORY
        if not directory.is_dir():
            return {}
        return {path.name: path.read_bytes() for path in directory.iterdir() if path.name[0] != "."}

    def publish(self, manifest: Manifest) -> Manifest:
        """Commit the checkpoint with the files of a manifest, which is returned signed where this process signs;
        PARTS_DIRECTORY is removed.

        Raises:
            StorageError: the store refuses, or does not hold what was written.
        """
        with storage_errors(self.path):
            shutil.rmtree(self.path / PARTS_DIRECTORY, ignore_errors=True)
        return commit_manifest(self.path, self.target, manifest)

    def discard(self) -> None:
        """Delete everything of this save."""
        shutil.rmtree(self.path, ignore_errors=True)


@contextmanager
def created(file: Path, *, durable: bool) -> Iterator[HashingWriter]:
    """A new file whose bytes are hashed; `durable` has them on the disk when the context is left."""
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
            if durable:
                os.fsync(stream.fileno())


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


def open_checkpoint(directory: Path, files: Collection[str] | None = None) -> Path:
    """Verify a checkpoint's directory, or the named ones of its files, and return it.

    Raises:
        CorruptArtefactError: names every file that is missing, damaged, or not in the manifest.
    """
    manifest = open_artefact(directory, kind=KIND, only=files)
    if foreign := unlisted(directory, manifest):
        listed = "\n".join(f"  {damage}" for damage in foreign)
        raise CorruptArtefactError(f"{directory} ({KIND}) holds files of unknown origin:\n{listed}")
    return directory
