"""Machines and processes that are told apart from any place, whatever their clocks do."""

from __future__ import annotations

import os
import platform
from functools import cache
from pathlib import Path

import psutil


@cache
def this_machine() -> str:
    """Identifies the boot of this machine and its process namespace, within which process ids are unique; host names
    may be equal."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return platform.node()


def born_s(process: psutil.Process) -> float:
    """Seconds between the boot of this machine and the start of a process. A clock that is set does not change them;
    it moves both Unix times."""
    return process.create_time() - psutil.boot_time()


def find_process(pid: int, started_s: float) -> psutil.Process | None:
    """The process of this machine with a number and a time of birth, unless it has ended.

    Args:
        started_s: as `born_s` gave it.
    """
    try:
        process = psutil.Process(pid)
        alive = abs(born_s(process) - started_s) < 1.0 and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return None
    return process if alive else None
