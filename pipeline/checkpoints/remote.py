"""The checkpoints of a run in an object store, or wherever else fsspec writes: list, upload, download, remove.

An object store has no rename. The files of a step are written in their place, `manifest.json` last: only the manifest
makes them a checkpoint, and it is the first file to be removed.

    URI/RUN/step-00000100/            as on a disk
    URI/RUN/step-00000100/parts/KEY/  done-markers and shares of the ranks while the save KEY runs
"""

from __future__ import annotations

import hashlib
import os
import uuid
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import xxhash

from cluster.artefacts.errors import CorruptArtefactError, MissingInputError, StorageError
from cluster.artefacts.manifest import FileEntry
from cluster.artefacts.storage import Damage, difference, storage_errors

_BLOCK_BYTES = 1 << 26
"""Size of a transfer; S3 takes up to 10,000 of them for a file."""
_TRANSFERS = 4
_DELETIONS = 8


@dataclass(frozen=True, slots=True)
class Remote:
    """A directory of an fsspec file system. Names are relative to it."""

    filesystem: Any
    root: str
    """Path in the file system, without the scheme."""
    uri: str
    """`root` with the scheme."""

    @classmethod
    def open(cls, uri: str) -> Remote:
        """The directory at an fsspec URI.

        Raises:
            MissingInputError: there is no such kind of store, or its library is not installed.
        """
        from fsspec.core import url_to_fs

        try:
            # Other processes write there too, so listings must not be cached.
            filesystem, root = url_to_fs(uri, use_listings_cache=False)
        except (ValueError, ImportError) as error:
            raise MissingInputError(
                f"Checkpoints cannot be kept at {uri}: {error}",
                next_step="install the store's library (s3fs for s3://, gcsfs for gs://), or name another place",
            ) from None
        return cls(filesystem, root.rstrip("/"), uri.rstrip("/"))

    def names(self, directory: str = "") -> list[str]:
        """Names of the entries of a directory, without its own name; none if there is no such directory."""
        with self._errors(directory, "read"):
            try:
                found = self.filesystem.ls(self._path(directory), detail=False)
            except FileNotFoundError:
                return []
            return [path.rstrip("/").rpartition("/")[2] for path in found]

    def sizes(self, directory: str) -> dict[str, int]:
        """Bytes of every file below a directory, by its name relative to that directory."""
        with self._errors(directory, "read"):
            prefix = f"{self._path(directory)}/"
            found = self.filesystem.find(self._path(directory), detail=True)
            return {path.removeprefix(prefix): int(facts["size"]) for path, facts in found.items()}

    def exists(self, name: str) -> bool:
        """Whether there is such a file or directory."""
        with self._errors(name, "read"):
            return self.filesystem.exists(self._path(name))

    def read(self, name: str) -> bytes:
        """The contents of a small file.

        Raises:
            FileNotFoundError: it does not exist.
        """
        with self._errors(name, "read"):
            return self.filesystem.cat_file(self._path(name))

    def write(self, name: str, data: bytes) -> None:
        """Write a small file."""
        with self._errors(name, "write"):
            try:
                self.filesystem.pipe_file(self._path(name), data)
            except Exception:
                # The store may have written it, and only its answer was lost.
                if not self._holds(name, data):
                    raise

    def upload(self, file: Path, name: str) -> None:
        """Copy a local file to the store."""
        with self._errors(name, "write"):
            self.filesystem.put_file(str(file), self._path(name))

    @contextmanager
    def opened(self, name: str, cache: str = "readahead") -> Iterator[BinaryIO]:
        """A file, to be read from its beginning to its end; `cache` is a name of fsspec's."""
        path = self._path(name)
        with (
            self._errors(name, "read"),
            self.filesystem.open(path, "rb", block_size=_BLOCK_BYTES, cache_type=cache) as stream,
        ):
            yield stream

    def sha256(self, name: str) -> str:
        """SHA-256 hex digest of a file, which is read through the network."""
        digest = hashlib.sha256()
        for block in self._blocks(name):
            digest.update(block)
        return digest.hexdigest()

    def copy(self, directory: str, target: str) -> None:
        """Copy all files below a directory to another name."""
        with self._errors(directory, "move"):
            source = self._path(directory)
            for path in self.filesystem.find(source):
                self.filesystem.cp_file(path, self._path(target) + path.removeprefix(source))

    def remove(self, names: Collection[str]) -> None:
        """Delete files one by one (`rm` would take a bracket in a name for a pattern); missing ones are passed over."""

        def remove_one(name: str) -> None:
            with suppress(FileNotFoundError), self._errors(name, "delete"):
                self.filesystem.rm_file(self._path(name))

        with ThreadPoolExecutor(_DELETIONS) as pool:
            list(pool.map(remove_one, names))

    def remove_directory(self, directory: str, first: str) -> None:
        """Delete all files below a directory, the file `first` of it before all others."""
        self.remove([f"{directory}/{first}"])
        self.remove([f"{directory}/{name}" for name in self.sizes(directory)])

    def download(
        self, directory: str, entries: Sequence[FileEntry], target: Path | None
    ) -> list[Damage | None]:
        """Read files and compare their hashes with a manifest.

        Args:
            target: local directory for the files; those that it holds with the right hash are not read again. None
                keeps nothing.

        Returns the damage of each file, None if its hash is right.
        """

        def download_one(entry: FileEntry) -> Damage | None:
            blocks = self._blocks(f"{directory}/{entry.path}")
            return _keep(blocks, entry, None if target is None else entry.under(target))

        with ThreadPoolExecutor(_TRANSFERS) as pool:
            return list(pool.map(download_one, entries))

    def place(self, name: str) -> str:
        """URI of a file or directory."""
        return f"{self.uri}/{name}" if name else self.uri

    def _path(self, name: str) -> str:
        return f"{self.root}/{name}" if name else self.root

    def _holds(self, name: str, data: bytes) -> bool:
        with suppress(Exception):
            return self.filesystem.cat_file(self._path(name)) == data
        return False

    def _blocks(self, name: str) -> Iterator[bytes]:
        with self.opened(name, "none") as stream:
            while block := stream.read(_BLOCK_BYTES):
                yield block

    @contextmanager
    def _errors(self, name: str, verb: str) -> Iterator[None]:
        """Turn any error of the store's client into a StorageError; FileNotFoundError of a read passes unchanged."""
        try:
            yield
        except (StorageError, CorruptArtefactError):
            raise
        except Exception as error:
            if isinstance(error, FileNotFoundError) and verb != "write":
                raise
            raise StorageError(
                f"Cannot {verb} {self.place(name)}: {str(error) or type(error).__name__}",
                next_step="check the store's address, credentials and permissions, then run the same command again",
            ) from error


def _keep(blocks: Iterator[bytes], entry: FileEntry, target: Path | None) -> Damage | None:
    """Hash the blocks of a file and put them at `target` if the hash is right."""
    if target is None:
        return _write(blocks, entry, Path(os.devnull))
    if target.is_file() and target.stat().st_size == entry.size_bytes and not difference(target, entry):
        return None
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}.tmp")
    try:
        with storage_errors(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            damage = _write(blocks, entry, temporary)
            if damage is None:
                os.replace(temporary, target)
        return damage
    finally:
        temporary.unlink(missing_ok=True)


def _write(blocks: Iterator[bytes], entry: FileEntry, copy: Path) -> Damage | None:
    digests: list[tuple[str, Any, str]] = [("xxh3_128", xxhash.xxh3_128(), entry.xxh3_128)]
    if entry.sha256 is not None:
        digests.append(("SHA-256", hashlib.sha256(), entry.sha256))
    try:
        with copy.open("wb") as stream:
            for block in blocks:
                for _, digest, _ in digests:
                    digest.update(block)
                stream.write(block)
    except FileNotFoundError:
        return Damage(entry.path, "missing")
    for name, digest, wanted in digests:
        if (found := digest.hexdigest()) != wanted:
            return Damage(entry.path, f"{name} is {found} instead of {wanted}")
    return None
