"""All runs of some directories, read again and again."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.run.directory import list_runs
from pipeline.watch.run_status import RUNNING, RunReader, RunStatus


@dataclass(frozen=True, slots=True)
class Runs:
    """Runs at one moment."""

    shown: tuple[RunStatus, ...]
    """The newest activity first."""
    left_out: int
    """Runs without activity for so long that they are not read, or too many."""


class RunsReader:
    """Reads the runs of some directories."""

    def __init__(self, directories: Sequence[Path], *, days: float, most: int) -> None:
        """
        Args:
            days: runs that wrote nothing for so long are left out.
            most: runs that are read; those with the newest activity.
        """
        self._directories, self._seconds, self._most = directories, days * 86400, most
        self._readers: dict[Path, RunReader] = {}

    def read(self) -> Runs:
        """The runs now; new ones are found, and removed ones are gone."""
        found = {run.path: run for directory in self._directories for run in list_runs(directory)}
        self._readers = {path: self._readers.get(path) or RunReader(run) for path, run in found.items()}
        since = time.time() - self._seconds
        newest = sorted(self._readers.values(), key=lambda reader: reader.changed_s, reverse=True)
        active: dict[str, RunReader] = {}
        for reader in newest:
            if reader.changed_s >= since:
                # A name stands for one run: of two copies, the newer one.
                active.setdefault(reader.name, reader)
        shown = [reader.read() for reader in list(active.values())[: self._most]]
        # Stable: the newest activity stays first among runs that are seen to, and among the others.
        shown.sort(key=lambda status: status.state not in RUNNING)
        return Runs(tuple(shown), len(found) - len(shown))
