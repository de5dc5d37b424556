"""What the task of a shard is doing, told through a file beside the shard: for stages that are one long task."""

from __future__ import annotations

import os
from pathlib import Path


def report_status(path: Path, text: str) -> None:
    """Say what is being done for the shard that a shard function writes to `path`; shown to people meanwhile."""
    status = _status_of(path)
    temporary = status.with_suffix(".new.tmp")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, status)


def read_status(directory: Path, file: str) -> str:
    """The latest status of a shard in work; empty without one."""
    found = []
    for status in directory.glob(f".{file}.*.status.tmp"):
        try:
            found.append((status.stat().st_mtime_ns, status.read_text(encoding="utf-8")))
        except OSError:
            # The shard was finished meanwhile.
            continue
    return max(found)[1] if found else ""


def remove_status(path: Path) -> None:
    """Forget what was reported for `path`."""
    _status_of(path).unlink(missing_ok=True)


def _status_of(path: Path) -> Path:
    return path.with_name(f"{path.name.removesuffix('.tmp')}.status.tmp")
