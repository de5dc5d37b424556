"""Low-priority threads: background work that yields the CPU to all other threads."""

from __future__ import annotations

import os
import threading
from contextlib import suppress

_NICENESS = 19


def step_back() -> None:
    """Lower this thread's priority below all others from now on, where the system has priorities of threads."""
    with suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
