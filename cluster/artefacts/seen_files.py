"""A cache of verified files: files that did not change since their hash was compared need not be read again.

Writing to a file changes its times, and no program can set the time of its last change (ctime) back. Bit rot on the
disk is not noticed this way; only reading everything again notices it.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

from cluster.artefacts.errors import StorageError
from cluster.artefacts.manifest import read_sealed, write_sealed

SETTLED_NS = 2_000_000_000
"""Coarsest resolution of file times: a file that was changed just now may change again with the same times."""


class SeenFiles:
    """Size, times and inode of files when their hash was compared, by path."""

    def __init__(self, known: dict[str, list[int | str]] | None = None) -> None:
        self._known = known or {}

    @classmethod
    def read(cls, path: Path, *, is_private: bool = False) -> SeenFiles:
        """Read a cache that `write` wrote; an empty one where the file is missing or damaged.

        Args:
            is_private: whether it lies where only this user can write, and need not be signed.
        """
        try:
            return cls(read_sealed(path, signed=not is_private)["files"])
        except (OSError, StorageError, ValueError, KeyError):
            return cls()

    def write(self, path: Path) -> None:
        """Write the cache to a file. Failing to write it only costs time at the next start."""
        with suppress(OSError):
            write_sealed(path, {"files": self._known}, signed=True)

    def has(self, path: Path, digest: str) -> bool:
        """Whether the file had this hash and did not change since."""
        return self._known.get(str(path.absolute())) == [*_appearance(path.stat()), digest]

    def add(self, path: Path, digest: str, before: os.stat_result) -> None:
        """Note that the file has this hash.

        Args:
            before: status of the file before it was read.
        """
        after = _appearance(path.stat())
        is_settled = time.time_ns() - max(before.st_mtime_ns, before.st_ctime_ns) > SETTLED_NS
        if is_settled and _appearance(before) == after:
            self._known[str(path.absolute())] = [*after, digest]


def _appearance(found: os.stat_result) -> list[int | str]:
    return [found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_dev]
