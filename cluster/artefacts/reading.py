"""Reading local files, one or many at a time: regular files only, and refusals of the file system as typed errors.

File names from a manifest or a record lead to files of that artefact, and nowhere else: anyone who can write to the
directory or the store of a manifest can write the manifest. So a name is checked when it is read, and the path that it
leads to again when it is used, because a link may have been put there since.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import orjson
import xxhash

from cluster.artefacts.errors import CorruptArtefactError, StorageError

_DRIVE = re.compile(r"[A-Za-z]:")
_PLAIN = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}")
"""Matches most names of files, about which there is nothing to ask."""
_LONGEST_BYTES = 255
"""Limit on one part of a name; common file systems take no longer ones."""
_LONGEST_NAME_BYTES = 1024
"""Limit on a whole name, as for the keys of S3; file systems take paths of 4096 bytes."""


def confined_name(name: str) -> str:
    """Return `name` if it is relative, normalised, with forward slashes, and of printable characters.

    Raises:
        ValueError: it is not; gives the reason.
    """
    if _PLAIN.fullmatch(name):
        return name
    reasons = {
        "has a part that is empty, `.` or `..`": not {"", ".", ".."}.isdisjoint(name.split("/")),
        "has a backslash": "\\" in name,
        "begins with a drive": _DRIVE.match(name) is not None,
        "has characters that are not printable": not name.isprintable(),
        "is too long": len(name.encode(errors="replace")) > _LONGEST_NAME_BYTES
        or any(len(part.encode(errors="replace")) > _LONGEST_BYTES for part in name.split("/")),
    }
    if found := [reason for reason, applies in reasons.items() if applies]:
        raise ValueError(f"{name[:200]!r} is not the name of a file inside the artefact: it {found[0]}")
    return name


def inside(directory: Path, name: str, *, replaced: bool = False) -> Path:
    """The path of a file of an artefact.

    Args:
        replaced: whether the file is to be replaced or moved; it may then itself be a link to anywhere.

    Raises:
        CorruptArtefactError: the name, or a link on the way, leads out of `directory`.
    """
    try:
        path = directory / confined_name(name)
    except ValueError as error:
        raise CorruptArtefactError(f"{directory}: {error}.") from None
    checked, kind = (path.parent, "directory") if replaced else (path, "file")
    if not _leads_into(checked, directory, name.count("/") + (not replaced)):
        raise CorruptArtefactError(
            f"{checked} is a link that leads out of {directory}.",
            next_step=f"put the {kind} itself in its place",
        )
    return path


def _leads_into(path: Path, directory: Path, depth: int) -> bool:
    """Whether `path`, which lies `depth` names below `directory`, is there when links are followed."""
    # Nearly always none of these names is a link, and it is there: resolving both paths would look at every directory
    # above them, for each of a hundred thousand files.
    place = str(path)
    for _ in range(depth):
        if os.path.islink(place):
            return os.path.realpath(path).startswith(os.path.join(os.path.realpath(directory), ""))
        place = os.path.dirname(place)
    return True


Item = TypeVar("Item")
Result = TypeVar("Result")

_FILE_THREADS = 8
"""Files that are read or written at a time: shared file systems answer late."""
_CHUNK = 64
"""Small files that are handed to a thread at a time."""
_FAST_S = 0.0002
"""Threads are faster if a file takes at least so many seconds."""
_ONCE_S = 0.01
"""Seconds that the first look into a directory, or anything else that happens once, may take besides."""
_SMALL_BYTES = 1 << 14
"""Files of fewer bytes are read at once."""
STALE_S = (0.05, 0.5, 2.0)
"""Seconds before a stale file is opened again."""
_REFUSALS = frozenset(
    {errno.EACCES, errno.EPERM, errno.EIO, errno.ESTALE, errno.EMFILE, errno.ENFILE, errno.ENODEV}
)


def refusal(error: BaseException, path: Path | str) -> StorageError | None:
    """The typed error for a file system's refusal to read; None for every other error, such as of a missing file.

    Code that takes an unreadable file for a damaged or missing one asks here first: making it again is no remedy.
    """
    if isinstance(error, StorageError):
        return error
    if not isinstance(error, OSError) or error.errno not in _REFUSALS:
        return None
    return StorageError(
        f"Cannot read {error.filename or path}: {os.strerror(error.errno)}.",
        kept="everything; nothing was changed",
        next_step="give this user permission to read it, or see that its storage is sound, and type the same again",
    )


@contextmanager
def reading(path: Path | str) -> Iterator[None]:
    """Inside the block, a refusal of the file system to read is a StorageError; other errors pass unchanged."""
    try:
        yield
    except OSError as error:
        if (found := refusal(error, path)) is not None:
            raise found from error
        raise


def open_regular(path: Path | str) -> int:
    """A descriptor for reading a regular file. A FIFO would make its reader wait for ever.

    Raises:
        FileNotFoundError, NotADirectoryError: there is none.
        StorageError: it is something else, or the file system refuses.
    """
    with reading(path):
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise StorageError(
            f"{path} is no regular file.",
            kept="everything; nothing was changed",
            next_step="find out what put it there, and move it away",
        )
    return descriptor


def read_bytes(path: Path | str) -> bytes:
    """The bytes of a small file. NFS takes a file away from readers when another machine replaces it (ESTALE); the path
    then leads to the new one.
    """
    with reading(path):
        for pause_s in STALE_S:
            try:
                return _read(path)
            except (OSError, StorageError) as error:
                if getattr(error.__cause__ or error, "errno", None) != errno.ESTALE:
                    raise
            time.sleep(pause_s)
        return _read(path)


def _read(path: Path | str) -> bytes:
    with open(open_regular(path), "rb") as stream:
        return stream.read()


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """The JSON objects in the lines of a file, without lines that a kill or a full disk tore; none without the file."""
    found = []
    for line in read_bytes(path).splitlines() if path.exists() else []:
        with suppress(orjson.JSONDecodeError):
            if isinstance(entry := orjson.loads(line), dict):
                found.append(entry)
    return found


def hash_file(path: Path) -> tuple[str, int]:
    """xxh3_128 hex digest and size in bytes of a local file."""
    descriptor = open_regular(path)
    # Most files of a large artefact are small; a stream and a buffer of its own cost more than reading one.
    try:
        with reading(path):
            data = os.read(descriptor, _SMALL_BYTES)
            if len(data) < _SMALL_BYTES and len(data) == os.fstat(descriptor).st_size:
                return xxhash.xxh3_128_hexdigest(data), len(data)
            os.lseek(descriptor, 0, os.SEEK_SET)
            with open(descriptor, "rb", closefd=False) as stream:
                digest = hashlib.file_digest(stream, xxhash.xxh3_128)
                return digest.hexdigest(), stream.tell()
    finally:
        os.close(descriptor)


def sha256_of(path: Path) -> str:
    """SHA-256 hex digest of a local file."""
    with reading(path), open(open_regular(path), "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def for_files(function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """`function` of every item, in order, several at a time unless each takes next to nothing; for functions that wait
    for files."""
    results: list[Result] = []
    slow = 0
    # Small files of a local disk take threads four times as long, because they wait for each other's turn in the
    # interpreter. So this thread takes the first items, up to a few that are slow.
    while len(results) < len(items) and slow < 2:
        chunk = items[len(results) : 2 * len(results) + 1][:_CHUNK]
        started = time.perf_counter()
        results += map(function, chunk)
        slow = slow + 1 if time.perf_counter() - started > _ONCE_S + _FAST_S * len(chunk) else 0
    rest = items[len(results) :]
    if not rest:
        return results
    # A thread takes many small files at once: handing over one costs as much as hashing it.
    size = max(1, min(_CHUNK, len(rest) // (8 * _FILE_THREADS)))
    chunks = [rest[first : first + size] for first in range(0, len(rest), size)]
    with ThreadPoolExecutor(_FILE_THREADS) as pool:
        for found in pool.map(lambda chunk: [function(item) for item in chunk], chunks):
            results += found
    return results
