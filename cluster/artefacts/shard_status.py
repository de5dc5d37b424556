"""Status of a shard's task, in a file beside the shard: for stages that are one long task."""

from __future__ import annotations

import os
from pathlib import Path


def report_status(path: Path, text: str) -> None:
    """Set the status that is shown while a shard function writes the shard at `path`."""
    status = _status_of(path)
    temporary = status.with_suffix(".new.tmp")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, status)


def read_status(directory: Path, file: str) -> str:
    """The latest status of a shard's running task; empty without one."""
    return _latest(directory, f".{file}.*.status.tmp")


def latest_status(directory: Path) -> str:
    """The latest status of any running task of an artefact; empty without one."""
    return _latest(directory, ".*.status.tmp")


def _latest(directory: Path, pattern: str) -> str:
    found = []
    for status in directory.glob(pattern):
        try:
            found.append((status.stat().st_mtime_ns, status.read_text(encoding="utf-8")))
        except OSError:
            # The shard was finished meanwhile.
            continue
    return max(found)[1] if found else ""


def remove_status(path: Path) -> None:
    """Remove the status of the shard at `path`."""
    _status_of(path).unlink(missing_ok=True)


def _status_of(path: Path) -> Path:
    return path.with_name(f"{path.name.removesuffix('.tmp')}.status.tmp")
