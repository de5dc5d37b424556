"""Locks on open files, as `flock` gives them: the kernel releases them when the process ends, however that ends."""

from __future__ import annotations

import errno
import fcntl
import time

_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
_HELD = (errno.EWOULDBLOCK, errno.EACCES)
_LOOK_S = 0.02


def lock(descriptor: int, *, shared: bool = False, wait_s: float | None = None) -> bool:
    """Lock an open file until it is closed.

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
