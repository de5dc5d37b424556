"""The memory of this machine, within the container's limit."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import psutil

_CGROUP = Path("/sys/fs/cgroup")
"""Of control groups, version 2."""


class Memory(NamedTuple):
    """Bytes."""

    total: int
    available: int


def memory() -> Memory:
    """Memory in all, and what could be had now."""
    machine = psutil.virtual_memory()
    limit, used = _bytes("memory.max"), _bytes("memory.current")
    if limit is not None and limit < machine.total:
        return Memory(limit, max(0, limit - (used or 0)))
    return Memory(machine.total, machine.available)


def _bytes(name: str) -> int | None:
    """A number of this container's memory controller; None where there is no limit."""
    try:
        text = (_CGROUP / name).read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
