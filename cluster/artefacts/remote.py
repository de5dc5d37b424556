"""A directory in an object store, or wherever else fsspec reads and writes: list, upload, download, remove.

An object store has no rename. The files of an artefact are written in their place, `manifest.json` last: only the
manifest makes them an artefact, and it is the first file to be removed.

A store drops connections and throttles. The client of S3 asks again by itself for some seconds; every operation here is
repeated beyond that, for up to a minute, unless its error would be the same again.
"""

from __future__ import annotations

import errno
import hashlib
import os
import random
import sys
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from cluster.artefacts.credentials import message_without_credentials
from cluster.artefacts.errors import CorruptArtefactError, MissingInputError, StorageError, StoreError
from cluster.artefacts.manifest import (
    MANIFEST_NAME,
    FileEntry,
    HashingWriter,
    Manifest,
    manifest_bytes,
    parse_manifest,
)
from cluster.artefacts.places import Uri, is_web
from cluster.artefacts.reading import inside
from cluster.artefacts.storage import Damage, storage_errors

Result = TypeVar("Result")

PAUSES_S = (0.5, 1.0, 2.0, 4.0, 8.0)
"""Seconds before an operation is repeated, each up to half as long again, so that many machines do not come back at
once."""
_PATIENCE_S = 60.0
"""An operation is not repeated after so many seconds: clients themselves wait minutes for a silent server."""
_SHOWN_PAUSE_S = 4.0
"""A pause of at least so many seconds is printed."""
_LASTING = (
    FileNotFoundError,
    FileExistsError,
    PermissionError,
    IsADirectoryError,
    NotADirectoryError,
    ValueError,
    TypeError,
    NotImplementedError,
    StorageError,
    CorruptArtefactError,
)
"""Errors that another attempt would not cure."""
_LASTING_NUMBERS = frozenset({errno.EINVAL, errno.EPERM, errno.ENOSYS, errno.ENAMETOOLONG, errno.ENOSPC})
_LASTING_NAMES = frozenset(
    {"NoCredentialsError", "PartialCredentialsError", "ProfileNotFound", "ParamValidationError"}
)
"""Errors of botocore, which is not imported here."""
_BLOCK_BYTES = 1 << 24
"""Size of a read, which is repeated as a whole."""
SMALL_BYTES = 1 << 30
"""More than the manifest of a million files has. A web server may send without end."""
_CHECK = "check the store's address, credentials and permissions, then run the same command again"
TRANSFERS = 8
"""Files that are transferred at a time."""
_DELETIONS = 8


@dataclass(frozen=True, slots=True)
class Remote:
    """A directory of an fsspec file system. Names are relative to it."""

    filesystem: Any
    root: str
    """Path in the file system, without the scheme."""
    uri: Uri
    """`root` with the scheme."""

    @classmethod
    def open(cls, uri: str) -> Remote:
        """The directory at an fsspec URI.

        Raises:
            MissingInputError: there is no such kind of store, its library is missing, or it needs more than a URI.
            StoreError: it does not answer.
        """
        from fsspec.core import url_to_fs

        try:
            # Other processes write there too, so listings must not be cached.
            filesystem, root = url_to_fs(uri, use_listings_cache=False)
        # Every kind of store raises classes of its own, some of them programming errors.
        except Exception as error:
            reason = f"{uri} cannot be reached: {str(error) or type(error).__name__}"
            if isinstance(error, OSError) and not error.filename:
                raise StoreError(reason, next_step=_CHECK) from error
            raise MissingInputError(
                reason,
                next_step="install the store's library (s3fs for s3://, gcsfs for gs://), or name another place",
            ) from None
        return cls(filesystem, root.rstrip("/"), Uri(uri.rstrip("/")))

    @property
    def lists(self) -> bool:
        """Whether there are listings, and reads of parts of files; web servers need not have either."""
        return not is_web(self.uri)

    def names(self) -> list[str]:
        """Names of the entries of the directory, without its own name; none if there is no such directory."""
        try:
            found = self._do("read", "", lambda path: self.filesystem.ls(path, detail=False))
        except FileNotFoundError:
            return []
        return [path.rpartition("/")[2] for each in found if (path := each.rstrip("/")) != self.root]

    def sizes(self) -> dict[str, int]:
        """Bytes of every file below the directory, by name; none if there is no such directory, or no such bucket."""
        prefix = f"{self.root}/"
        try:
            found = self._do("read", "", lambda path: self.filesystem.find(path, detail=True))
        except FileNotFoundError:
            return {}
        # A key that ends in a slash is what the consoles of stores make of "create folder".
        return {
            path.removeprefix(prefix): int(facts["size"] or 0)
            for path, facts in found.items()
            if not path.endswith("/")
        }

    def find_damage(self, manifest: Manifest) -> list[Damage]:
        """Compare the sizes of the files with a manifest."""
        sizes = self.sizes()
        return [
            Damage(name, f"{sizes[name]} bytes instead of {entry.size_bytes}" if name in sizes else "missing")
            for entry in manifest.files
            if sizes.get(name := entry.path) != entry.size_bytes
        ]

    def exists(self, name: str) -> bool:
        """Whether there is such a file or directory."""
        return self._do("read", name, self.filesystem.exists)

    def read(self, name: str, most_bytes: int | None = None) -> bytes:
        """The contents of a small file.

        Args:
            most_bytes: how large it may be; None trusts a store, and takes what a manifest can be from a web server.

        Raises:
            FileNotFoundError: it does not exist.
            StorageError: it is larger.
        """
        if self.lists and most_bytes is None:
            return self._do("read", name, self.filesystem.cat_file)
        most = most_bytes or SMALL_BYTES

        def read_blocks(_: str) -> bytes:
            found = bytearray()
            for block in self._blocks(name):
                found += block
                if len(found) > most:
                    raise StorageError(
                        f"{self.place(name)} is larger than {most >> 20:,} MiB, which no manifest or record is.",
                        kept="nothing of it",
                        next_step="name the place of an artefact, which `cloze push` has made",
                    )
            return bytes(found)

        return self._do("read", name, read_blocks)

    def manifest(self, *, anyone: bool = False) -> Manifest | None:
        """The manifest of the artefact in this directory; None where there is none."""
        try:
            data = self.read(MANIFEST_NAME)
        except FileNotFoundError:
            return None
        return parse_manifest(data, self.place(MANIFEST_NAME), anyone=anyone)

    def require_manifest(self) -> Manifest:
        """`manifest`, with a MissingInputError where there is none."""
        if (found := self.manifest()) is None:
            raise self.nothing_here()
        return found

    def nothing_here(self) -> MissingInputError:
        """The error of a place without an artefact."""
        return MissingInputError(
            f"There is no artefact at {self.uri}: it has no {MANIFEST_NAME}.",
            next_step=f"correct the URI, or put one there: cloze push DIRECTORY {self.uri}; a web server cannot be"
            " listed, so name one artefact there",
        )

    def commit(self, manifest: Manifest) -> None:
        """Write the manifest when all its files are there in their size.

        Raises:
            StoreError: the store does not hold what was written.
        """
        if damages := self.find_damage(manifest):
            raise StoreError(
                f"{self.uri} does not hold what was written: {damages[0]}.",
                next_step="find out who else writes there, and type the same command again",
            )
        self.write(MANIFEST_NAME, manifest_bytes(manifest))

    def write(self, name: str, data: bytes) -> None:
        """Write a small file."""

        def pipe(path: str) -> None:
            try:
                self.filesystem.pipe_file(path, data)
            except Exception:
                # The store may have written it, and only its answer was lost.
                there = None
                with suppress(Exception):
                    there = self.filesystem.cat_file(path)
                if there != data:
                    raise

        self._do("write", name, pipe)

    def upload(self, file: Path, name: str) -> None:
        """Copy a local file to the store."""
        self._do("write", name, lambda path: self.filesystem.put_file(str(file), path))

    def sha256(self, name: str) -> str:
        """SHA-256 hex digest of a file, which is read through the network."""
        digest = hashlib.sha256()
        for block in self._blocks(name):
            digest.update(block)
        return digest.hexdigest()

    def copy(self, target: Uri) -> None:
        """Copy all files to another directory of the same store."""
        root = Remote.open(target).root
        for name in self.sizes():
            self._do("move", name, lambda path, name=name: self.filesystem.cp_file(path, f"{root}/{name}"))

    def remove(self, names: Collection[str]) -> None:
        """Delete files one by one (`rm` would take a bracket in a name for a pattern); missing ones are passed over."""

        def remove_one(name: str) -> None:
            with suppress(FileNotFoundError):
                self._do("delete", name, self.filesystem.rm_file)

        with ThreadPoolExecutor(_DELETIONS) as pool:
            list(pool.map(remove_one, names))

    def remove_all(self) -> None:
        """Delete all files, the manifest before all others."""
        self.remove([MANIFEST_NAME])
        self.remove(self.sizes())

    def download(
        self,
        entries: Sequence[FileEntry],
        target: Path | None,
        advance: Callable[[int], object] = lambda size_bytes: None,
    ) -> list[Damage | None]:
        """Read files and compare their hashes with a manifest.

        Args:
            target: local directory for the files; None keeps nothing.
            advance: called with the bytes of each file that is done.

        Returns the damage of each file, None if its hash is right.
        """

        def download_one(entry: FileEntry) -> Damage | None:
            name = entry.path
            place = None if target is None else inside(target, name, replaced=True)
            found = self._do("read", name, lambda _: _keep(self._blocks(name), entry, place))
            advance(entry.size_bytes)
            return found

        with ThreadPoolExecutor(TRANSFERS) as pool:
            return list(pool.map(download_one, entries))

    def place(self, name: str) -> Uri:
        """URI of a file or directory."""
        return self.uri / name if name else self.uri

    def _path(self, name: str) -> str:
        return f"{self.root}/{name}" if name else self.root

    def _blocks(self, name: str) -> Iterator[bytes]:
        options = {"block_size": _BLOCK_BYTES if self.lists else 0, "cache_type": "none"}
        with self._do("read", name, lambda path: self.filesystem.open(path, "rb", **options)) as stream:

            def read(_: str) -> bytes:
                return stream.read(_BLOCK_BYTES)

            # A block that cannot be read leaves the file at its beginning; a stream is lost with its connection.
            while block := (self._do("read", name, read) if self.lists else read(name)):
                yield block

    def _do(self, verb: str, name: str, function: Callable[[str], Result]) -> Result:
        """The result of a function of the path of a file, which is called again after errors that may pass."""
        started = time.monotonic()
        with self._errors(verb, name):
            for pause_s in PAUSES_S:
                try:
                    return function(self._path(name))
                except Exception as error:
                    number = error.errno if isinstance(error, OSError) else None
                    lasts = isinstance(error, _LASTING) or number in _LASTING_NUMBERS
                    if lasts or type(error).__name__ in _LASTING_NAMES:
                        raise
                    if time.monotonic() - started > _PATIENCE_S:
                        raise
                    if pause_s >= _SHOWN_PAUSE_S:
                        reason = message_without_credentials(f"{self.place(name)}: {error}")
                        print(f"{reason}; asking again in {pause_s:.0f} s", file=sys.stderr)
                time.sleep(pause_s * random.SystemRandom().uniform(1, 1.5))
            return function(self._path(name))

    @contextmanager
    def _errors(self, verb: str, name: str) -> Iterator[None]:
        """Turn any error of the store's client into a StoreError; FileNotFoundError of a read passes unchanged."""
        try:
            yield
        except (StorageError, CorruptArtefactError):
            raise
        except Exception as error:
            if isinstance(error, FileNotFoundError) and verb != "write":
                raise
            raise StoreError(
                f"Cannot {verb} {self.place(name)}: {str(error) or type(error).__name__}",
                next_step=_CHECK,
            ) from error


def _keep(blocks: Iterator[bytes], entry: FileEntry, target: Path | None) -> Damage | None:
    """Hash the blocks of a file and put them at `target` if the hash is right."""
    if target is None:
        return _write(blocks, entry, Path(os.devnull))
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
    try:
        with copy.open("wb") as stream:
            writer = HashingWriter(stream, sha256=entry.sha256 is not None)
            for block in blocks:
                if writer.size_bytes + len(block) > entry.size_bytes:
                    # Room was made for the bytes of the manifest, and no more may be taken.
                    return Damage(entry.path, f"more than {entry.size_bytes} bytes")
                writer.write(block)
    except FileNotFoundError:
        return Damage(entry.path, "missing")
    reason = entry.difference(writer.entry(entry.path))
    return Damage(entry.path, reason) if reason else None
