"""Directories that other users of the machine cannot write to: a cache, and temporary directories for Ray.

Files in the cache are read back without a manifest, and numba's compiled loops and torch's operators are code.

Ray makes its directories writable for all users, and paths of Unix sockets must be short. So Ray gets a subdirectory of
`TMPDIR/cloze-UID/`, which is short, and which only its owner can enter (mode 0700).
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from cluster.artefacts.errors import StorageError
from cluster.artefacts.owner import lock

CACHE_VARIABLE = "CLOZE_CACHE"
"""Environment variable that names the directory for copies; ~/.cache/cloze where it is not set."""
SOCKET_PATH_BYTES = 107
"""The kernel's limit on the path of a Unix socket."""
RAY_NAME = "r"
"""Name of Ray's subdirectory; short because of the limit."""
_BELOW = len(f"/{RAY_NAME}/session_2026-01-01_00-00-00_000000_4194304/sockets/dash_MetricsHead")
"""Length of the longest path that Ray adds to its directory; without its dashboard's sockets it takes no jobs."""
_LOCK_NAME = "in-use"
FALLBACK = Path("/tmp")


def cache_directory() -> Path:
    """Directory for copies of remote files: CLOZE_CACHE, else ~/.cache/cloze, else one for temporary files. Where other
    users can write to CLOZE_CACHE, as on a disk that all share, it is this user's own directory in it.

    Raises:
        StorageError: that directory belongs to another user, or cannot be made.
    """
    if not (chosen := os.environ.get(CACHE_VARIABLE)):
        return private_cache()
    directory = Path(chosen)
    with suppress(OSError):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not _others_write(directory):
        return directory
    own = directory / f"cloze-{os.getuid()}"
    if not _make_private(own, links=False):
        raise StorageError(
            f"Other users can write to {directory}, and {own} cannot be made, or belongs to one of them.",
            next_step=f"name a directory of this user by {CACHE_VARIABLE}",
        )
    return own


def private_cache() -> Path:
    """~/.cache/cloze, or where that cannot be written, a temporary directory that this user owns."""
    try:
        usual = Path.home() / ".cache" / "cloze"
    except RuntimeError:  # an unknown home
        usual = None
    for candidate in (usual, Path(tempfile.gettempdir()) / f"cloze-{os.getuid()}"):
        # Another user may have put a link into a directory that all users share.
        if candidate is not None and _make_private(candidate, links=candidate == usual):
            return candidate
    return Path(tempfile.mkdtemp(prefix="cloze-"))


def private_root() -> Path:
    """`cloze-UID` in the directory for temporary files, or in `/tmp` where that has too long a path for sockets.

    Raises:
        StorageError: it belongs to another user, is a link, or others may enter it, so that it is not safe.
    """
    name = f"cloze-{os.getuid()}"
    places = [Path(tempfile.gettempdir()).resolve(), FALLBACK]
    least = len("/o-12345678") + _BELOW
    fitting = [place for place in places if len(os.fsencode(place / name)) + least <= SOCKET_PATH_BYTES]
    if not fitting:
        raise StorageError(
            f"{places[0]} has too long a path for the sockets of Ray, which may have {SOCKET_PATH_BYTES} bytes.",
            next_step="set TMPDIR to a directory with a short path",
        )
    root = fitting[0] / name
    try:
        root.mkdir(mode=0o700)
    except FileExistsError:
        require_private(root)
    except OSError as error:
        raise StorageError(
            f"Cannot make {root}: {error.strerror}.",
            next_step="set TMPDIR to a directory that this user may write to",
        ) from error
    return root


def require_private(path: Path) -> None:
    """Refuse a directory that is not this user's alone.

    Raises:
        StorageError: names the problem.
    """
    found = path.lstat()
    if stat.S_ISLNK(found.st_mode):
        problem = "is a symbolic link"
    elif not stat.S_ISDIR(found.st_mode):
        problem = "is not a directory"
    elif found.st_uid != os.getuid():
        problem = f"belongs to user {found.st_uid}"
    elif found.st_mode & 0o077:
        problem = f"can be entered by others (mode {stat.S_IMODE(found.st_mode):04o})"
    else:
        return
    raise StorageError(
        f"{path} {problem}; its files could be read or replaced by another user.",
        next_step=f"find its owner, remove it (`rm -r {path}`), or set TMPDIR to another directory",
    )


def make_private_directory(prefix: str) -> Path:
    """A new directory that only this user may enter; raises StorageError as `private_root` does."""
    return Path(tempfile.mkdtemp(prefix=prefix, dir=private_root()))


@contextmanager
def private_directory(prefix: str) -> Iterator[Path]:
    """A private directory for the block.

    If the block fails or is killed, the directory stays, because its logs say why; the next directory that is made
    removes all leftovers but the newest.
    """
    root = private_root()

    def age(directory: Path) -> float:
        try:
            return -directory.lstat().st_mtime
        except OSError:  # Another process removed it meanwhile: it counts as old.
            return 0.0

    with (root / _LOCK_NAME).open("w") as one_at_a_time:
        lock(one_at_a_time.fileno())
        for old in sorted(root.glob(f"{prefix}*"), key=age)[1:]:
            with suppress(OSError), (old / _LOCK_NAME).open("r+") as in_use:
                if lock(in_use.fileno(), wait_s=0):
                    shutil.rmtree(old, ignore_errors=True)
        directory = make_private_directory(prefix)
        in_use = (directory / _LOCK_NAME).open("w")
        lock(in_use.fileno())
    with in_use:
        try:
            yield directory
            shutil.rmtree(directory, ignore_errors=True)
        except KeyboardInterrupt:
            shutil.rmtree(directory, ignore_errors=True)
            raise


def _others_write(directory: Path) -> bool:
    """Whether another user can write to a directory; False where there is none."""
    try:
        found = directory.stat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and (found.st_uid != os.getuid() or bool(found.st_mode & 0o022))


def _make_private(directory: Path, *, links: bool) -> bool:
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = directory.stat(follow_symlinks=links)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            return False
        if found.st_mode & 0o022:
            directory.chmod(stat.S_IMODE(found.st_mode) & ~0o022)
    except OSError:
        return False
    return os.access(directory, os.W_OK | os.X_OK)
