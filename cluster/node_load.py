"""The memory of this machine, and how the load of machines is described."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import psutil

CGROUP = Path("/sys/fs/cgroup")
"""Directory of control groups, version 2."""


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
        text = (CGROUP / name).read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


@dataclass(frozen=True, slots=True)
class GpuLoad:
    """One GPU; None where the machine does not report it."""

    number: int
    ratio: float | None = None
    """Share of the time that kernels ran."""
    memory_bytes: float | None = None
    memory_ratio: float | None = None
    power_watts: float | None = None


@dataclass(frozen=True, slots=True)
class NodeLoad:
    """One machine; None where it does not report it."""

    name: str
    cpu_ratio: float | None = None
    """Share of the processors' time."""
    load_average: float | None = None
    """Over one minute."""
    memory_bytes: float | None = None
    """In use."""
    memory_ratio: float | None = None
    disk_free_bytes: float | None = None
    gpus: tuple[GpuLoad, ...] = ()
    is_alive: bool = True
