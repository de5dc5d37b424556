"""The most bytes that this process had allocated at a time, by whatever thread, as the GNU C library counts them.

PyTorch's profiler follows one thread: what threads of gloo free counts as alive for good. Here every block of
`SMALLEST` bytes and more, among them all tensors of that size, is mapped from the system on its own, because
`ENVIRONMENT` tells the library so at the start of the process. The library adds up what is mapped, and keeps the
highest sum, at each call and whichever thread makes it (`mallinfo2(3)`, `malloc_stats(3)`): nothing is sampled, and a
block that another thread frees is gone. What it cannot see are smaller blocks, and each block counts in whole pages.
"""

from __future__ import annotations

import ctypes
import os
import sys
import tempfile

SMALLEST = 1 << 16
ENVIRONMENT = {"MALLOC_MMAP_THRESHOLD_": str(SMALLEST)}
"""Variables that a process must be started with to be measured."""


class _Info(ctypes.Structure):
    """`struct mallinfo2`: ten sizes."""

    _fields_ = [
        ("arenas", ctypes.c_size_t * 4),
        ("hblkhd", ctypes.c_size_t),
        ("in_use", ctypes.c_size_t * 5),
    ]


def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallinfo2"):
        raise OSError(
            f"memory cannot be measured on {sys.platform}: it takes the GNU C library, 2.33 or later"
        )
    library.mallinfo2.restype = _Info
    return library


def mapped_bytes() -> int:
    """What is allocated now in blocks of at least `SMALLEST` bytes.

    Raises:
        OSError: the C library does not count.
    """
    return _library().mallinfo2().hblkhd


def peak_mapped_bytes() -> int:
    """The most that `mapped_bytes` has been since the process began."""
    library = _library()
    with tempfile.TemporaryFile() as printed:
        # The library tells the maximum to people alone.
        errors = os.dup(2)
        os.dup2(printed.fileno(), 2)
        try:
            library.malloc_stats()
        finally:
            os.dup2(errors, 2)
            os.close(errors)
        printed.seek(0)
        lines = dict(line.split(b"=") for line in printed.read().splitlines() if b"=" in line)
    return int(lines[b"max mmap bytes   "])
