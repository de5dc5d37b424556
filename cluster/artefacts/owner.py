"""The owner of a directory, one process at a time: a lock, and a lease for machines that do not see each other's locks.

    DIRECTORY/.lock     locked by the process that works there; names it, for people. The kernel releases it
    DIRECTORY/.lease    exists while a process works there, which counts it up every RENEWAL_S

Locks of some shared file systems end at the machine, and others know none. A process of another machine then watches
the lease: one that changes is held. One that stays the same for EXPIRY_S is taken over, because its process has ended,
or has lost the file system. Clocks of machines are never compared.
"""

from __future__ import annotations

import errno
import fcntl
import os
import platform
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any
from uuid import uuid4

import orjson
import psutil

from cluster.artefacts.errors import InUseError
from cluster.artefacts.storage import storage_errors


@contextmanager
def repeated(
    look: Callable[[], None], every_s: float, *, name: str, once_more: bool = False
) -> Iterator[None]:
    """Call `look` every so many seconds in a thread for the time of the block.

    An error is printed, unless it is the one before, and the next look comes all the same: a file system or a head that
    refuses for a moment answers later.

    Args:
        name: of the thread, and for messages.
        once_more: whether there is a last look at the end of the block.
    """
    over = threading.Event()

    def follow() -> None:
        printed = ""
        while True:
            ending = over.wait(every_s)
            if ending and not once_more:
                return
            try:
                look()
            except Exception as error:
                if printed != (printed := f"{type(error).__name__}: {error}".partition("\n")[0]):
                    with suppress(OSError, ValueError):
                        print(f"{name}: {printed}", file=sys.stderr)
            if ending:
                return

    thread = threading.Thread(target=follow, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


LOCK_NAME = ".lock"
LEASE_NAME = ".lease"
RENEWAL_S = 2.0
EXPIRY_S = 10.0
"""The lease of another machine expires after so many seconds without a change."""
_WATCHING_S = 0.5
_LEASE_BYTES = 1024
_LOOKING_S = 0.14
"""Seconds to wait for processes that only look whether a directory is in use, which takes them microseconds."""
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
_HELD = (errno.EWOULDBLOCK, errno.EACCES)
_LOOK_S = 0.02


def lock(descriptor: int, *, shared: bool = False, wait_s: float | None = None) -> bool:
    """Lock an open file (`flock`) until it is closed; the kernel unlocks it when the process ends, however that ends.

    Returns False on a file system without locks (Lustre without `-o flock`, some of NFS), where no other process can
    have it either.

    Args:
        shared: with others that share it.
        wait_s: longest time to wait for other processes; None waits for ever.

    Raises:
        BlockingIOError: another process holds it after that time.
    """
    mode = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    deadline = None if wait_s is None else time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(descriptor, mode if deadline is None else mode | fcntl.LOCK_NB)
            return True
        except OSError as error:
            if error.errno in _NO_LOCKS:
                return False
            if error.errno not in _HELD:
                raise
            if deadline is None or time.monotonic() >= deadline:
                raise BlockingIOError(*error.args) from None
        time.sleep(_LOOK_S)


@contextmanager
def exclusive(
    directory: Path, what: str, *, in_use: str = "wait for it to finish, or choose another directory"
) -> Iterator[None]:
    """Hold `directory` for one writer at a time; it is free again when the process ends, however that ends.

    Args:
        what: the holder's work, for the error message in other processes.
        in_use: the remedy where another process holds it.

    Raises:
        InUseError: another process holds it; the message says which, where, and since when.
    """
    with storage_errors(directory):
        descriptor = os.open(directory / LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            lock(descriptor, wait_s=_LOOKING_S)
        except BlockingIOError:
            raise _in_use(directory, _read_holder(descriptor), in_use) from None
        lease = _Lease(directory, what)
        with storage_errors(directory):
            os.ftruncate(descriptor, 0)
            lease.take(in_use)
        with suppress(OSError):
            os.pwrite(descriptor, lease.holder.encode(), 0)
        with lease.renewed():
            yield
    finally:
        os.close(descriptor)


def is_in_use(directory: Path) -> bool:
    """Whether a process has locked `directory`; False on a file system without locks."""
    try:
        with (directory / LOCK_NAME).open("rb") as looked_at:
            lock(looked_at.fileno(), shared=True, wait_s=0)
        return False
    except BlockingIOError:
        return True
    except OSError:
        return False


class _Lease:
    """The lease of this process on a directory."""

    def __init__(self, directory: Path, what: str) -> None:
        self._directory, self._path = directory, directory / LEASE_NAME
        self._mine: dict[str, Any] = {
            "token": uuid4().hex,
            "what": what,
            **this_process(),
            "since": datetime.now(UTC).isoformat(timespec="seconds"),
            "count": 0,
        }
        self._descriptor = -1

    @property
    def holder(self) -> str:
        """This process, in words."""
        return _in_words(self._mine)

    def take(self, in_use: str) -> None:
        """Create the lease, or take it over from a process that has ended."""
        while True:
            with suppress(FileExistsError):
                # One of several machines that create it together succeeds, also on NFS.
                self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
                return self._write()
            found = self._path.read_bytes() if self._path.exists() else b""
            if _is_held(self._path, found):
                raise _in_use(self._directory, _in_words(_read(self._path)), in_use)
            # Remove the expired lease; one that another process has taken over meanwhile is put back.
            aside = self._path.with_name(f"{LEASE_NAME}.{self._mine['token']}")
            with suppress(FileNotFoundError):
                os.rename(self._path, aside)
                if aside.read_bytes() != found:
                    with suppress(FileExistsError):
                        os.link(aside, self._path)
                aside.unlink()

    @contextmanager
    def renewed(self) -> Iterator[None]:
        """Count the lease up from a thread for the time of the block; then release it."""

        def renew() -> None:
            # A disk that refuses for a moment is asked again; for longer, the lease expires.
            if self._is_mine():
                self._mine["count"] += 1
                self._write()

        try:
            with repeated(renew, RENEWAL_S, name="lease"):
                yield
        finally:
            if self._is_mine():
                with suppress(OSError):
                    self._path.unlink()
            os.close(self._descriptor)

    def _write(self) -> None:
        # One write of one size: a reader sees this count or the one before.
        os.pwrite(self._descriptor, orjson.dumps(self._mine).ljust(_LEASE_BYTES), 0)

    def _is_mine(self) -> bool:
        return _read(self._path).get("token") == self._mine["token"]


def _is_held(path: Path, found: bytes) -> bool:
    """Whether the process of a lease still works: looked up on its own machine, watched from any other."""
    holder = _parsed(found)
    if holder.get("machine") == this_machine():
        return find_process(int(holder["pid"]), float(holder["started_s"])) is not None
    deadline = time.monotonic() + EXPIRY_S
    while time.monotonic() < deadline:
        time.sleep(_WATCHING_S)
        try:
            if path.read_bytes() != found:
                return True
        except FileNotFoundError:
            return False
        except OSError:
            continue  # A file system that refuses for a moment says nothing about the holder.
    return False


def _read(path: Path) -> dict[str, Any]:
    try:
        return _parsed(path.read_bytes())
    except OSError:
        return {}


def _parsed(contents: bytes) -> dict[str, Any]:
    try:
        found = orjson.loads(contents)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _in_words(holder: dict[str, Any]) -> str:
    if not holder:
        return "another process"
    return f"{holder['what']} (process {holder['pid']} on {holder['host']}, since {holder['since']})"


def _read_holder(descriptor: int) -> str:
    """The holder that a lock's file names; it is written a moment after the lock is taken."""
    for patience_s in (0.01, 0.03, 0.1, 1.0):
        if holder := os.pread(descriptor, 1000, 0).decode(errors="replace"):
            return holder
        time.sleep(patience_s)
    return "another process"


def _in_use(directory: Path, holder: str, in_use: str) -> InUseError:
    return InUseError(f"{directory} is in use by {holder}.", next_step=in_use)


@cache
def this_machine() -> str:
    """Identifies the boot of this machine and its process namespace, within which process ids are unique; host names
    may be equal."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return platform.node()


def this_process() -> dict[str, Any]:
    """This process as others find it: `host` for people, `machine`, and `pid` and `started_s` for `find_process`."""
    return {
        "host": platform.node(),
        "machine": this_machine(),
        "pid": os.getpid(),
        "started_s": born_s(psutil.Process()),
    }


def born_s(process: psutil.Process) -> float:
    """Seconds between the boot of this machine and the start of a process. A clock that is set does not change them;
    it moves both Unix times."""
    return process.create_time() - psutil.boot_time()


def find_process(pid: int, started_s: float) -> psutil.Process | None:
    """The process of this machine with a number and a time of birth, unless it has ended.

    Args:
        started_s: as `born_s` gave it.
    """
    try:
        process = psutil.Process(pid)
        alive = abs(born_s(process) - started_s) < 1.0 and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return None
    return process if alive else None
