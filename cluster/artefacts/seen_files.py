"""Files that were verified once and that nobody touched since: they need not be read again.

Whoever writes to a file changes its times, and nobody can set the time of its last change back. What a disk alters by
itself is not noticed this way; only reading everything again is.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

import orjson

from cluster.artefacts.manifest import seal, unseal, write_durably

_SETTLED_NS = 2_000_000_000
"""File systems keep times as coarse as this: a file that was changed just now may change once more unseen."""


class SeenFiles:
    """By path, what a file looked like when its hash was found to be right."""

    def __init__(self, known: dict[str, list[int | str]] | None = None) -> None:
        self._known = known or {}

    @classmethod
    def read(cls, path: Path) -> SeenFiles:
        """Those that `write` wrote to a file; none where it is not there or damaged."""
        try:
            return cls(unseal(orjson.loads(path.read_bytes()))["files"])
        except (OSError, ValueError, KeyError):
            return cls()

    def write(self, path: Path) -> None:
        """Write them to a file; one that cannot be written costs time at the next start, and nothing else."""
        with suppress(OSError):
            write_durably(path, orjson.dumps(seal({"files": self._known})))

    def has(self, path: Path, digest: str) -> bool:
        """Whether the file had this hash and is as it was."""
        return self._known.get(str(path.absolute())) == [*_appearance(path.stat()), digest]

    def add(self, path: Path, digest: str, before: os.stat_result) -> None:
        """Note that the file has this hash.

        Args:
            before: the file as it was before it was read.
        """
        after = _appearance(path.stat())
        is_settled = time.time_ns() - max(before.st_mtime_ns, before.st_ctime_ns) > _SETTLED_NS
        if is_settled and _appearance(before) == after:
            self._known[str(path.absolute())] = [*after, digest]


def _appearance(found: os.stat_result) -> list[int | str]:
    return [found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_dev]
