"""Checkpoints in an object store, or wherever else fsspec writes.

Such a store has no rename. A step's files are written in their place, `manifest.json` last: it makes them a checkpoint,
and it goes first when they are to be none any more.

    URI/RUN/step-00000100/            as on a disk
    URI/RUN/step-00000100/parts/KEY/  marks and shares of the ranks while the save KEY runs

What is read is copied to a directory of this machine, hashed on the way; files that are there already with the right
hash are not copied again.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import xxhash

from cluster.artefacts.errors import CorruptArtefactError, MissingInputError, StorageError
from cluster.artefacts.manifest import (
    MANIFEST_NAME,
    FileEntry,
    InputEntry,
    Manifest,
    make_manifest,
    manifest_bytes,
    parse_manifest,
    write_durably,
)
from cluster.artefacts.storage import Damage, storage_errors
from pipeline.checkpoints.checkpoint import KIND, checkpoint_name, unlisted
from pipeline.checkpoints.remote_files import BLOCK_BYTES, cache_directory, read_files, remote_errors
from pipeline.checkpoints.store import PARTS_DIRECTORY, HashingWriter, Staging

_DELETIONS = 8
_STEP = re.compile(r"/step-(\d{8,})$")


@dataclass(frozen=True, slots=True)
class RemoteStore:
    """The checkpoints of one run below a URI."""

    filesystem: Any
    """An fsspec file system."""
    root: str
    """Path in it, without the scheme."""
    uri: str
    """The same with the scheme."""
    cache: Path
    """Directory on this machine for copies."""
    copies: bool = True

    @classmethod
    def open(cls, uri: str) -> RemoteStore:
        """The store at an fsspec URI.

        Raises:
            MissingInputError: there is no such kind of store, or its library is not installed.
        """
        from fsspec.core import url_to_fs

        try:
            # What other processes wrote must be seen: nothing that was listed is remembered.
            filesystem, root = url_to_fs(uri, use_listings_cache=False)
        except (ValueError, ImportError) as error:
            raise MissingInputError(
                f"Checkpoints cannot be kept at {uri}: {error}",
                next_step="install the store's library (s3fs for s3://, gcsfs for gs://), or name another place",
            ) from None
        name = xxhash.xxh3_64_hexdigest(uri.encode())
        return cls(filesystem, root.rstrip("/"), uri.rstrip("/"), cache_directory() / "checkpoints" / name)

    def steps(self) -> list[int]:
        """See CheckpointStore."""
        with remote_errors(self.uri, "read"):
            try:
                names = self.filesystem.ls(self.root, detail=False)
            except FileNotFoundError:
                return []
            found = [int(match[1]) for name in names if (match := _STEP.search(name.rstrip("/")))]
            return sorted(
                step for step in found if self.filesystem.exists(f"{self._path(step)}/{MANIFEST_NAME}")
            )

    def lost(self) -> list[int]:
        """See CheckpointStore. Files come one by one here, the manifest last."""
        return []

    def place(self, step: int) -> str:
        """See CheckpointStore."""
        return f"{self.uri}/{checkpoint_name(step)}"

    def local(self, step: int) -> Path:
        """See CheckpointStore."""
        return self.cache / checkpoint_name(step)

    def manifest(self, step: int) -> Manifest:
        """See CheckpointStore."""
        return parse_manifest(self._manifest_data(step), f"{self.place(step)}/{MANIFEST_NAME}")

    def damage(self, step: int, *, deep: bool) -> list[Damage]:
        """See CheckpointStore. `deep` reads everything through the network, and keeps nothing."""
        manifest = self.manifest(step)
        found = {damage.path: damage for damage in self._wrong_sizes(step, manifest)}
        if deep:
            rest = [entry for entry in manifest.files if entry.path not in found]
            for entry, damage in zip(rest, self._read(step, rest, None), strict=True):
                if damage is not None:
                    found[entry.path] = damage
        return list(found.values())

    def fetch(self, step: int, files: Collection[str] | None = None) -> Path:
        """See CheckpointStore."""
        data = self._manifest_data(step)
        manifest = parse_manifest(data, f"{self.place(step)}/{MANIFEST_NAME}")
        if manifest.kind != KIND:
            raise CorruptArtefactError(f"{self.place(step)} holds {manifest.kind}, but {KIND} is needed.")
        self._forget_deleted()
        wanted = [entry for entry in manifest.files if files is None or entry.path in files]
        damages = self._wrong_sizes(step, manifest)
        if not damages:
            read = self._read(step, wanted, self.local(step))
            damages = [damage for damage in read if damage is not None]
        if damages:
            listed = "\n".join(f"  {damage}" for damage in damages)
            raise CorruptArtefactError(
                f"{self.place(step)} ({KIND}) is damaged:\n{listed}",
                kept=f"{len(manifest.files) - len(damages)} of {len(manifest.files)} files verify",
            )
        with storage_errors(self.local(step)):
            # A copy of what the step was before: another number of ranks may have written it.
            for stale in unlisted(self.local(step), manifest):
                (self.local(step) / stale.path).unlink()
            write_durably(self.local(step) / MANIFEST_NAME, data)
        return self.local(step)

    def delete(self, step: int) -> None:
        """See CheckpointStore."""
        with remote_errors(self.place(step), "delete"):
            self._remove_all(step)

    def set_aside(self, step: int) -> str:
        """See CheckpointStore. The store copies the files to another name, then they are deleted."""
        number, suffix = 0, ".corrupt"
        with remote_errors(self.place(step), "move"):
            while self.filesystem.exists(f"{self._path(step)}{suffix}"):
                number += 1
                suffix = f".corrupt.{number}"
            target = f"{self._path(step)}{suffix}"
            for path in self.filesystem.find(self._path(step)):
                self.filesystem.cp_file(path, target + path.removeprefix(self._path(step)))
            self._remove_all(step)
        return f"{self.place(step)}{suffix}"

    def staging(self, step: int, key: str) -> Staging:
        """See CheckpointStore."""
        return RemoteStaging(self, step, key)

    def make_room(self, step: int) -> None:
        """See CheckpointStore."""
        with remote_errors(self.place(step), "delete"):
            self._remove_manifest(step)

    def clean(self) -> None:
        """See CheckpointStore."""
        with remote_errors(self.uri, "delete"):
            committed = set(self.steps())
            with suppress(FileNotFoundError):
                for path in self.filesystem.ls(self.root, detail=False):
                    match = _STEP.search(path.rstrip("/"))
                    if match and int(match[1]) not in committed:
                        self.remove(self.filesystem.find(path))

    def remove(self, paths: Collection[str]) -> None:
        """Delete files by their full names, one by one: `rm` would take a bracket in a name for a pattern."""

        def remove_one(path: str) -> None:
            with suppress(FileNotFoundError):
                self.filesystem.rm_file(path)

        with ThreadPoolExecutor(_DELETIONS) as pool:
            list(pool.map(remove_one, paths))

    def _path(self, step: int) -> str:
        return f"{self.root}/{checkpoint_name(step)}"

    def _manifest_data(self, step: int) -> bytes:
        with remote_errors(self.place(step), "read"):
            try:
                return self.filesystem.cat_file(f"{self._path(step)}/{MANIFEST_NAME}")
            except FileNotFoundError:
                raise CorruptArtefactError(
                    f"{self.place(step)} is no checkpoint: it has no {MANIFEST_NAME}."
                ) from None

    def _remove_manifest(self, step: int) -> None:
        self.remove([f"{self._path(step)}/{MANIFEST_NAME}"])

    def _remove_all(self, step: int) -> None:
        # First what makes it a checkpoint: half of one must never look like one.
        self._remove_manifest(step)
        self.remove(self.filesystem.find(self._path(step)))

    def _wrong_sizes(self, step: int, manifest: Manifest) -> list[Damage]:
        with remote_errors(self.place(step), "read"):
            sizes = {
                path.removeprefix(f"{self._path(step)}/"): int(details["size"])
                for path, details in self.filesystem.find(self._path(step), detail=True).items()
            }
        return [
            Damage(
                entry.path,
                f"{sizes[entry.path]} bytes instead of {entry.size_bytes}"
                if entry.path in sizes
                else "missing",
            )
            for entry in manifest.files
            if sizes.get(entry.path) != entry.size_bytes
        ]

    def _read(self, step: int, entries: Sequence[FileEntry], target: Path | None) -> list[Damage | None]:
        return read_files(self.filesystem, self._path(step), self.place(step), entries, target)

    def _forget_deleted(self) -> None:
        """Delete copies of checkpoints that are no longer there: the copies follow the run's retention."""
        if self.cache.is_dir():
            there = {checkpoint_name(step) for step in self.steps()}
            for copy in self.cache.glob("step-*"):
                if copy.name not in there:
                    shutil.rmtree(copy, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class RemoteStaging:
    """A checkpoint that is being written in its place, without a manifest so far."""

    store: RemoteStore
    step: int
    key: str
    poll_s: float = 1.0

    @property
    def _path(self) -> str:
        return f"{self.store.root}/{checkpoint_name(self.step)}"

    @property
    def _marks(self) -> str:
        return f"{self._path}/{PARTS_DIRECTORY}/{self.key}/marks"

    def _place_of(self, path: str) -> str:
        """Shares of the ranks are kept apart by save; a share of a killed one must never be taken."""
        private = f"{PARTS_DIRECTORY}/"
        if path.startswith(private):
            return f"{self._path}/{private}{self.key}/{path.removeprefix(private)}"
        return f"{self._path}/{path}"

    @contextmanager
    def create(self, path: str) -> Iterator[HashingWriter]:
        """See Staging."""
        place = self._place_of(path)
        with remote_errors(f"{self.store.place(self.step)}/{path}", "write"):
            stream = self.store.filesystem.open(place, "wb", block_size=BLOCK_BYTES)
            writer = HashingWriter(stream)
            try:
                with writer.own_errors():
                    yield writer
            except BaseException:
                with suppress(Exception):
                    stream.discard()  # what was sent of it costs money until it is taken back
                stream.closed = True
                raise
            stream.close()

    @contextmanager
    def open(self, path: str) -> Iterator[BinaryIO]:
        """See Staging."""
        place = f"{self.store.place(self.step)}/{path}"
        with (
            remote_errors(place, "read"),
            self.store.filesystem.open(
                self._place_of(path), "rb", block_size=BLOCK_BYTES, cache_type="readahead"
            ) as stream,
        ):
            yield stream

    def remove(self, paths: Collection[str]) -> None:
        """See Staging."""
        with remote_errors(self.store.place(self.step), "delete"):
            self.store.remove([self._place_of(path) for path in paths])

    def mark(self, name: str, data: bytes) -> None:
        """See Staging."""
        with remote_errors(self.store.place(self.step), "write"):
            self.store.filesystem.pipe_file(f"{self._marks}/{name}", data)

    def marks(self) -> Mapping[str, bytes]:
        """See Staging."""
        filesystem = self.store.filesystem
        with remote_errors(self.store.place(self.step), "read"):
            try:
                paths = filesystem.ls(self._marks, detail=False)
            except FileNotFoundError:
                return {}
            return {path.rsplit("/", 1)[1]: filesystem.cat_file(path) for path in paths}

    def publish(
        self,
        files: Sequence[FileEntry],
        config: Mapping[str, Any],
        inputs: Sequence[InputEntry],
        stats: Mapping[str, Any],
    ) -> Manifest:
        """See Staging."""
        manifest = make_manifest(KIND, config=config, inputs=inputs, files=files, stats=stats)
        filesystem = self.store.filesystem
        known = {f"{self._path}/{entry.path}" for entry in files}
        with remote_errors(self.store.place(self.step), "write"):
            self.store.remove([path for path in filesystem.find(self._path) if path not in known])
        if damages := self.store._wrong_sizes(self.step, manifest):
            raise StorageError(
                f"{self.store.place(self.step)} does not hold what was written: {damages[0]}.",
                kept="the earlier checkpoints",
            )
        data, target = manifest_bytes(manifest), f"{self._path}/{MANIFEST_NAME}"
        with remote_errors(self.store.place(self.step), "write"):
            try:
                filesystem.pipe_file(target, data)
            except Exception:
                # The store may have done it, and its answer not have arrived: then this is a checkpoint.
                if not self._holds(target, data):
                    raise
        return manifest

    def discard(self) -> None:
        """See Staging."""
        self.store.delete(self.step)

    def _holds(self, path: str, data: bytes) -> bool:
        with suppress(Exception):
            return self.store.filesystem.cat_file(path) == data
        return False
