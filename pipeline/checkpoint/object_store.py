"""Checkpoints in an object store.

Every file is written to this machine, uploaded to its place and removed here; the manifest is uploaded last. Files are
downloaded and hashed when they are needed, into the bounded cache of this machine; copies are deleted with the store's
own.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import BinaryIO, ClassVar

from cluster.artefacts.errors import CorruptArtefactError, StorageError
from cluster.artefacts.manifest import (
    MANIFEST_NAME,
    Manifest,
    manifest_bytes,
    signed,
)
from cluster.artefacts.places import Uri
from cluster.artefacts.reading import for_files
from cluster.artefacts.remote import Remote
from cluster.artefacts.storage import Damage, damaged
from cluster.copies import copy_directory, drop_copies, local_copy
from pipeline.checkpoint.checkpoint import CHECKPOINT_NAME, checkpoint_name
from pipeline.checkpoint.disk_store import (
    MARKERS_DIRECTORY,
    PARTS_DIRECTORY,
    CheckpointStore,
    HashingWriter,
    Staging,
    created,
)


@dataclass(frozen=True)
class ObjectStore(CheckpointStore):
    """The checkpoints of a run in an object store; files on their way to it lie in `directory`."""

    remote: Remote

    copies: ClassVar[bool] = True

    def steps(self) -> list[int]:
        names = self.remote.names()
        found = sorted(int(match[1]) for name in names if (match := CHECKPOINT_NAME.match(name)))
        is_there = for_files(lambda step: self.remote.exists(_manifest_name(step)), found)
        return [*compress(found, is_there)]

    def lost(self) -> list[int]:
        """None: the manifest is written last, so that a directory without one is a save that still runs."""
        return []

    def place(self, step: int) -> Uri:
        return self.remote.place(checkpoint_name(step))

    def local(self, step: int) -> Path:
        return copy_directory(self.place(step))

    def read_manifest(self, step: int) -> Manifest:
        try:
            return self.remote.manifest(checkpoint_name(step))[1]
        except FileNotFoundError:
            raise CorruptArtefactError(
                f"{self.place(step)} is no checkpoint: it has no {MANIFEST_NAME}."
            ) from None

    def damage(self, step: int, manifest: Manifest, *, deep: bool) -> list[Damage]:
        """As `CheckpointStore.damage`; `deep` reads everything through the network, and keeps nothing."""
        name = checkpoint_name(step)
        found = self.remote.find_damage(manifest, name)
        if deep:
            known = {damage.path for damage in found}
            rest = [entry for entry in manifest.files if entry.path not in known]
            found += [damage for damage in self.remote.below(name).download(rest, None) if damage is not None]
        return found

    def fetch(self, step: int, files: Collection[str] | None = None) -> Path:
        manifest = self.manifest(step)
        drop_copies(self.remote.uri, [self.place(one) for one in self.steps()])
        if damages := self.damage(step, manifest, deep=False):
            raise damaged(self.place(step), manifest, damages)
        return local_copy(self.place(step), only=files, one_place=True)

    def delete(self, step: int) -> None:
        self.remote.remove_directory(checkpoint_name(step))

    def set_aside(self, step: int, why: str = "corrupt") -> Uri:
        name, number = checkpoint_name(step), 0
        target = f"{name}.{why}"
        while self.remote.exists(target):
            number += 1
            target = f"{name}.{why}.{number}"
        self.remote.copy(name, target)
        self.delete(step)
        return self.remote.place(target)

    def staging(self, step: int, key: str) -> Staging:
        save = super().staging(step, key)
        return ObjectStaging(save.path, save.target, key, self.remote)

    def make_room(self, step: int) -> None:
        self.remote.remove([_manifest_name(step)])

    def clean(self) -> None:
        super().clean()
        committed = {checkpoint_name(step) for step in self.steps()}
        for name in self.remote.names():
            if CHECKPOINT_NAME.match(name) and name not in committed:
                self.remote.remove_directory(name)


@dataclass(frozen=True)
class ObjectStaging(Staging):
    """One save of one step, whose ranks may be on machines that share nothing but the store."""

    key: str
    """Distinguishes this save from all others of the step."""
    remote: Remote

    poll_s: ClassVar[float] = 1.0

    @contextmanager
    def create(self, path: str) -> Iterator[HashingWriter]:
        file = self.path / path
        with created(file, durable=False) as writer:
            yield writer
        self.remote.upload(file, self._name(path))
        file.unlink()

    @contextmanager
    def open(self, path: str) -> Iterator[BinaryIO]:
        with self.remote.opened(self._name(path)) as stream:
            yield stream

    def remove(self, paths: Collection[str]) -> None:
        super().remove(paths)
        self.remote.remove([self._name(path) for path in paths])

    def mark(self, name: str, data: bytes) -> None:
        self.remote.write(f"{self._name(MARKERS_DIRECTORY)}/{name}", data)

    def marks(self) -> Mapping[str, bytes]:
        directory = self._name(MARKERS_DIRECTORY)
        return {name: self.remote.read(f"{directory}/{name}") for name in self.remote.names(directory)}

    def publish(self, manifest: Manifest) -> Manifest:
        known, name = {entry.path for entry in manifest.files}, self.target.name
        self.remote.remove([f"{name}/{file}" for file in self.remote.sizes(name) if file not in known])
        if damages := self.remote.find_damage(manifest, name):
            raise StorageError(
                f"{self.remote.place(name)} does not hold what was written: {damages[0]}.",
                kept="the earlier checkpoints",
            )
        manifest = signed(manifest, lambda entry: self.remote.sha256(f"{name}/{entry.path}"))
        self.remote.write(f"{name}/{MANIFEST_NAME}", manifest_bytes(manifest))
        shutil.rmtree(self.path, ignore_errors=True)
        return manifest

    def discard(self) -> None:
        super().discard()
        self.remote.remove_directory(self.target.name)

    def _name(self, path: str) -> str:
        """The name in the store. Parts are kept apart by save: the parts of a killed save must never be read."""
        inner = path.removeprefix(f"{PARTS_DIRECTORY}/")
        own = path if inner == path else f"{PARTS_DIRECTORY}/{self.key}/{inner}"
        return f"{self.target.name}/{own}"


def _manifest_name(step: int) -> str:
    return f"{checkpoint_name(step)}/{MANIFEST_NAME}"
