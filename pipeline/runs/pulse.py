"""Proof that a process exists, even if it is busy or stopped: a helper process beside it counts, and ends with it.

RUN/heartbeats/pulse-00000    the count of rank 0's helper, written every two seconds

A thread of the worker could not count while its main thread holds the interpreter's lock in C, nor while the worker is
stopped; yet either may go on to train. Whether counts change is all that readers look at: clocks of machines differ.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Collection
from pathlib import Path

PERIOD_S = 2.0
"""Seconds between two counts."""
OBSERVATION_S = 12.0
"""Seconds without a new count after which a process of another machine is taken for gone."""
_EXIT_CODE = 52
"""Number of that field in /proc/PID/stat (proc(5)), the first of which behind the name is 3."""
_HELPER = f"""
import os, select, signal, sys
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
path, parent, count = sys.argv[1], int(sys.argv[2]), 0
try:
    stat = os.open("/proc/%d/stat" % parent, os.O_RDONLY)
except OSError:
    stat = -1
while os.getppid() == parent:
    count += 1
    try:
        # Opened anew, because that is when other machines of a shared file system come to know.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
        os.pwrite(descriptor, b"%12d %20d\\n" % (parent, count), 0)
        os.close(descriptor)
    except OSError:
        pass
    if select.select([0], [], [], {PERIOD_S})[0]:
        break
try:
    # The worker has closed its files, and is not yet gone: its exit status is the last number of its line.
    status = int(os.pread(stat, 4096, 0).rsplit(b")", 1)[1].split()[{_EXIT_CODE - 3}])
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
    os.write(descriptor, b"signal %d\\n" % (status & 0x7F))
except (OSError, ValueError, IndexError):
    pass
"""


class Pulse:
    """The helper of this process."""

    def __init__(self, path: Path, pid: int) -> None:
        command = [sys.executable, "-I", "-S", "-c", _HELPER, str(path), str(pid)]
        try:
            self._helper: subprocess.Popen[bytes] | None = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
        except OSError:
            # Without memory for another process, training goes on without it, and the heartbeats remain.
            self._helper = None

    def close(self) -> None:
        """Stop counting."""
        if self._helper is not None:
            self._helper.kill()
            self._helper.communicate()


def deadly_signal(path: Path) -> int | None:
    """The signal that ended a helper's worker, 0 where none did; None where the helper was too late to see it."""
    for line in _contents(path).splitlines():
        if line.startswith(b"signal "):
            return int(line.split()[1])
    return None


def find_beating(paths: Collection[Path], seconds: float = OBSERVATION_S) -> Path | None:
    """The first file whose contents change within so many seconds; None when none does."""
    before = {path: _contents(path) for path in paths}
    deadline = time.monotonic() + seconds
    while paths and time.monotonic() < deadline:
        time.sleep(PERIOD_S / 4)
        for path in paths:
            if _contents(path) != before[path]:
                return path
    return None


def _contents(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
