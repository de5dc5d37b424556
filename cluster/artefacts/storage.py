"""Artefact directories: staged under a hidden name, committed by one rename, verified, quarantined."""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.artefacts.errors import ClozeError, CorruptArtefactError, MissingInputError, StorageError
from cluster.artefacts.manifest import (
    MANIFEST_NAME,
    FileEntry,
    InputEntry,
    Manifest,
    hash_file,
    make_manifest,
    read_manifest,
    sha256_of,
    write_manifest,
)
from cluster.artefacts.reading import for_files, inside, reading, refusal
from cluster.artefacts.seals import SeenFiles
from cluster.artefacts.signatures import require_key

_OS_ERROR = re.compile(r"\(os error (\d+)\)")
QUARANTINE_NAME = "quarantine"
LOOKED_AT_BYTES = 1 << 30
"""Size that is hashed in a second or two."""


@dataclass(frozen=True, slots=True)
class Damage:
    """One file that differs from its entry in the manifest."""

    path: str
    """Relative to the artefact."""
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


def is_committed(directory: Path) -> bool:
    """Whether `directory` holds a committed artefact (not whether its bytes are still good)."""
    return (directory / MANIFEST_NAME).is_file()


def staging_directory(directory: Path, key: str) -> Path:
    """The staging directory of the artefact `directory`.

    `key` hashes inputs and settings: work for one configuration is found again after a crash and never mixed with work
    for another.
    """
    return directory.with_name(f".{directory.name}.{key[:12]}.partial")


@contextmanager
def staged(directory: Path, key: str) -> Iterator[Path]:
    """An empty staging directory, for an artefact that is made in one go: a failure leaves nothing of it."""
    staging = staging_directory(directory, key)
    try:
        with storage_errors(staging):
            shutil.rmtree(staging, ignore_errors=True)
            staging.mkdir(parents=True)
            yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def find_damage(
    directory: Path,
    manifest: Manifest,
    *,
    deep: bool = True,
    only: Collection[str] | None = None,
    seen: SeenFiles | None = None,
) -> list[Damage]:
    """Compare every file with the manifest: sizes always, hashes when `deep`.

    Args:
        only: paths of the files whose hashes are compared; None means all.
        seen: cache of files whose hashes need not be compared again; verified files are added.
    """

    def check(entry: FileEntry) -> Damage | None:
        try:
            path = entry.under(directory)
        except CorruptArtefactError:
            return Damage(entry.path, "a link that leads out of the artefact")
        with reading(path):
            before = _status(path)
        if before is None:
            return Damage(entry.path, "missing")
        if (size_bytes := before.st_size) != entry.size_bytes:
            return Damage(entry.path, f"{size_bytes} bytes instead of {entry.size_bytes}")
        if not deep or (only is not None and entry.path not in only):
            return None
        # A cache that is shared with those who do not ask for signatures must not vouch for the SHA-256.
        known = entry.sha256 or entry.xxh3_128
        if seen is not None and seen.has(path, known):
            return None
        with reading(path):
            reason = difference(path, entry)
        if reason:
            return Damage(entry.path, reason)
        if seen is not None:
            seen.add(path, known, before)
        return None

    # Reading and hashing release the GIL, so threads make verification as fast as the disk.
    return [damage for damage in for_files(check, manifest.files) if damage is not None]


def _status(path: Path) -> os.stat_result | None:
    """The status of a file; None where there is none."""
    try:
        found = path.stat()
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return None
        raise
    return found if stat.S_ISREG(found.st_mode) else None


def difference(path: Path, entry: FileEntry) -> str:
    """The difference between a file and its entry; empty where there is none."""
    digest, size_bytes = hash_file(path)
    sha256 = sha256_of(path) if entry.sha256 else None
    return entry.difference(FileEntry(entry.path, size_bytes, digest, sha256=sha256))


def describe_damage(directory: Path, manifest: Manifest) -> str:
    """The damage of an artefact in one line, for display; empty if there is none.

    Files are hashed if they have up to LOOKED_AT_BYTES in all; of larger artefacts only sizes are compared.
    """
    size_bytes = sum(entry.size_bytes for entry in manifest.files)
    damages = find_damage(directory, manifest, deep=size_bytes <= LOOKED_AT_BYTES)
    more = f"; and {len(damages) - 3} more files" if len(damages) > 3 else ""
    return f"damaged: {'; '.join(map(str, damages[:3]))}{more}" if damages else ""


def open_artefact(
    directory: Path,
    *,
    kind: str | None = None,
    deep: bool = True,
    only: Collection[str] | None = None,
    seen: SeenFiles | None = None,
    repair: str = "",
    anyone: bool = False,
) -> Manifest:
    """Read and verify a committed artefact.

    Args:
        kind: the kind it must be; None accepts any.
        deep: hash every file; otherwise only sizes are compared.
        only: paths of the files that are hashed; None means all.
        seen: cache of files that need not be hashed again; verified files are added.
        repair: the command that repairs it, for the error message.
        anyone: whether it need not be signed where signatures are asked for.

    Raises:
        MissingInputError: it is an artefact of another kind.
        CorruptArtefactError: names the artefact and every damaged file.
        UntrustedArtefactError: signatures are asked for, and it has no good one.
    """
    manifest = read_manifest(directory, anyone=anyone)
    if kind is not None and manifest.kind != kind:
        beside = directory.parent / kind
        raise MissingInputError(
            f"{directory} is an artefact of the kind `{manifest.kind}`; one of the kind `{kind}` is needed here.",
            next_step=f"name {beside if is_committed(beside) else f'a directory with {kind}'}",
        )
    if damages := find_damage(directory, manifest, deep=deep, only=only, seen=seen):
        repair = repair or "make it again with the command that made it; only damaged files are redone"
        raise damaged(directory, manifest, damages, repair)
    return manifest


def damaged(
    place: Path | str, manifest: Manifest, damages: Sequence[Damage], next_step: str = ""
) -> CorruptArtefactError:
    """The error that names every damaged file of an artefact."""
    listed = "\n".join(f"  {damage}" for damage in damages)
    return CorruptArtefactError(
        f"{place} ({manifest.kind}) is damaged:\n{listed}",
        kept=f"{len(manifest.files) - len(damages)} of {len(manifest.files)} files verify",
        next_step=next_step,
    )


def commit(
    staging: Path,
    directory: Path,
    kind: str,
    *,
    config: Mapping[str, Any],
    inputs: Sequence[InputEntry] = (),
    files: Sequence[FileEntry] | None = None,
    stats: Mapping[str, Any] | None = None,
) -> Manifest:
    """Turn `staging` into the artefact `directory`: manifest last, then one rename.

    Args:
        files: entries known already; None hashes every file found in `staging`.

    Raises:
        StorageError: the file system refused; `staging` is left as it is.
        UntrustedArtefactError: it would not be signed, and this process itself would refuse to read it.
    """
    entries = list(files) if files is not None else hash_tree(staging)
    manifest = make_manifest(kind, config=config, inputs=inputs, files=entries, stats=stats or {})
    return commit_manifest(staging, directory, manifest)


def commit_manifest(staging: Path, directory: Path, manifest: Manifest) -> Manifest:
    """As `commit`, for files whose manifest is made."""
    require_key()
    with storage_errors(directory):
        manifest = write_manifest(staging, manifest)
    put_in_place(staging, directory, manifest.files)
    return manifest


def put_in_place(staging: Path, directory: Path, entries: Sequence[FileEntry]) -> None:
    """Rename a staging directory that has its manifest, durably; an artefact or a directory of the user that is there
    makes way.

    Raises:
        StorageError: the file system refused; `staging` is left as it is.
    """
    with storage_errors(directory):
        # A journal writes what many threads wait for at once.
        for_files(lambda entry: _fsync(entry.under(staging)), entries)
        _fsync(staging)
        if directory.exists() and not is_committed(directory):
            # A directory without a manifest was never an artefact; it may hold files of the user.
            os.replace(directory, free_name(directory.with_name(f"{directory.name}.uncommitted")))
        elif directory.exists():
            os.replace(directory, free_name(directory.with_name(f".{directory.name}.replaced")))
        os.replace(staging, directory)
    # It is committed: errors from here on must not say otherwise.
    with suppress(OSError):
        _fsync(directory.parent)
    for old in directory.parent.glob(f".{directory.name}.replaced*"):
        with suppress(OSError):
            remove_tree(old)


def find_artefacts(root: Path) -> Iterator[Path]:
    """Directories with a manifest at or below `root`, by name; neither the insides of artefacts nor hidden directories
    are looked into."""
    for directory, below, files in os.walk(root):
        if MANIFEST_NAME in files:
            below.clear()
            yield Path(directory)
        below[:] = sorted(name for name in below if not name.startswith("."))


def remove_tree(path: Path) -> None:
    """Delete a directory, or a link to one but not its target.

    Raises:
        OSError: something in it cannot be deleted.
    """
    if path.is_symlink():
        path.unlink()
    else:
        shutil.rmtree(path)


def hash_tree(directory: Path) -> list[FileEntry]:
    """An entry for every file under `directory`, sorted by path; the manifest itself is left out."""
    entries = []
    for path in sorted(directory.rglob("*")):
        relative = path.relative_to(directory).as_posix()
        if path.is_file() and relative != MANIFEST_NAME:
            entries.append(FileEntry.of(path, relative))
    return entries


def quarantine(directory: Path, damage: Damage) -> Path | None:
    """Move a damaged file to the artefact's quarantine directory; returns its new path, None if it is missing.

    Raises:
        CorruptArtefactError: its name, or a link on the way, leads out of the artefact.
    """
    path = inside(directory, damage.path, replaced=True)
    if not os.path.lexists(path):
        return None
    inside(directory, f"{QUARANTINE_NAME}/{damage.path}", replaced=True)
    target = free_name(directory / QUARANTINE_NAME / damage.path)
    target.parent.mkdir(parents=True, exist_ok=True)
    os.replace(path, target)
    return target


@contextmanager
def storage_errors(where: Path, *, again: str = "run the same command again") -> Iterator[None]:
    """Turn a file system's error into a StorageError with a remedy.

    Args:
        again: how to continue the work afterwards.
    """
    remedies = {
        errno.ENOSPC: f"free disk space, then {again}; finished work is kept",
        errno.EDQUOT: f"raise the quota, then {again}; finished work is kept",
        errno.EFBIG: "raise the limit on file sizes (ulimit -f), or choose another file system",
        errno.EACCES: "give this user write permission, or choose another directory",
        errno.EPERM: "give this user write permission, or choose another directory",
        errno.EROFS: "choose a directory on a writable file system",
        errno.ESTALE: f"see that the shared storage is mounted and answers, then {again}; finished work is kept",
        errno.EIO: f"see that the storage is sound (`dmesg`), then {again}; finished work is kept",
        errno.ENOTDIR: "a file is in the place of a directory; move it or choose another directory",
        errno.EEXIST: "a file is in the place of a directory; move it or choose another directory",
        errno.EISDIR: "a directory is in the place of a file; move it or choose another directory",
        errno.ENAMETOOLONG: "choose a shorter name",
        errno.ELOOP: "a link leads back to itself; remove it",
    }
    try:
        yield
    except Exception as error:
        # Libraries written in Rust have the number only in the message.
        found = _OS_ERROR.search(str(error))
        number = (error.errno or 0) if isinstance(error, OSError) else int(found[1]) if found else 0
        if number not in remedies:
            raise
        place = getattr(error, "filename", None) or where
        raise StorageError(
            f"Cannot write {place}: {os.strerror(number)}.", next_step=remedies[number]
        ) from error


@contextmanager
def contents_of(
    file: Path,
    error_class: type[ClozeError] = CorruptArtefactError,
    next_step: str = "find out who wrote it, and replace it by a copy that you trust: SECURITY.md",
) -> Iterator[None]:
    """Turn any exception of a parser in the block into a typed error that names the file.

    A manifest vouches for bytes, never for their meaning: a file may have been written to attack its reader.
    """
    try:
        yield
    except (ClozeError, MemoryError):
        raise
    except Exception as error:
        if (refused := refusal(error, file)) is not None:
            raise refused from error
        reason = (str(error) or type(error).__name__).splitlines()[0][:300]
        raise error_class(
            f"{file} cannot be read: {type(error).__name__}: {reason}", next_step=next_step
        ) from error


def free_name(path: Path) -> Path:
    """`path`, or the first of `path.1`, `path.2`, ... that does not exist."""
    candidate, number = path, 0
    while os.path.lexists(candidate):
        number += 1
        candidate = path.with_name(f"{path.name}.{number}")
    return candidate


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
