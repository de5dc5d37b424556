"""Files written past the page cache.

A checkpoint is written once and rarely read on the machine that wrote it. Through the page cache, the kernel takes
pages, copies all bytes into them, writes them in the background and frees the pages again: more work than all else that
a save computes, taken from training where that uses all cores.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from pathlib import Path
from types import TracebackType

import numpy as np

_BUFFER_BYTES = 1 << 24
"""Bytes that are handed to the disk at a time."""
ALIGNMENT = 4096
"""What disks and file systems ask of addresses, places and sizes."""
_DIRECT = getattr(os, "O_DIRECT", 0)


class DirectFile:
    """A new file whose bytes go to the disk from where they are, or where that is at no multiple of ALIGNMENT in memory
    or in the file, from a buffer; through the page cache where the file system knows no other way."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb", buffering=0)
        self._direct = self._set_direct(_DIRECT)
        self._memory = mmap.mmap(-1, _BUFFER_BYTES)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            self._memory.madvise(mmap.MADV_HUGEPAGE)
        self._buffer = np.frombuffer(self._memory, dtype=np.uint8)
        self._used = 0

    def __enter__(self) -> DirectFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def fileno(self) -> int:
        """The file's descriptor."""
        return self._file.fileno()

    def write(self, data: bytes | memoryview) -> int:
        """Write all of `data`, in time; returns its size in bytes."""
        source, start = np.frombuffer(data, dtype=np.uint8), 0
        if self._direct and self._used % ALIGNMENT == source.ctypes.data % ALIGNMENT == 0:
            start = len(source) // ALIGNMENT * ALIGNMENT
            self._drain(self._used)
            self._write(source[:start].data)
        while start < len(source):
            size = min(len(source) - start, _BUFFER_BYTES - self._used)
            # NumPy copies without the GIL.
            np.copyto(self._buffer[self._used : self._used + size], source[start : start + size])
            start, self._used = start + size, self._used + size
            if self._used == _BUFFER_BYTES:
                self._drain(_BUFFER_BYTES)
        return len(source)

    def flush(self) -> None:
        """Write everything out. What comes later goes through the page cache, because it begins anywhere."""
        whole = self._used // ALIGNMENT * ALIGNMENT
        self._drain(whole)
        if self._used:
            self._direct = self._direct and not self._set_direct(0)
            self._drain(self._used)

    def _drain(self, size: int) -> None:
        """Write the first bytes of the buffer; the few that are left move to its beginning."""
        self._write(memoryview(self._memory)[:size])
        self._buffer[: self._used - size] = self._buffer[size : self._used].copy()
        self._used -= size

    def _write(self, data: memoryview) -> None:
        while len(data):
            try:
                written = self._file.write(data[:_BUFFER_BYTES]) or 0
            except OSError as error:
                if not self._direct or error.errno != errno.EINVAL:
                    raise
                # The file system has accepted the flag, and refuses to write.
                self._direct = not self._set_direct(0)
                continue
            data = data[written:]
            if written % ALIGNMENT:
                self._direct = self._direct and not self._set_direct(0)

    def _set_direct(self, flag: int) -> bool:
        """Switch to writing past the page cache, or back; returns whether that is done."""
        try:
            others = fcntl.fcntl(self._file, fcntl.F_GETFL) & ~_DIRECT
            fcntl.fcntl(self._file, fcntl.F_SETFL, others | flag)
        except OSError:
            return False
        return True
