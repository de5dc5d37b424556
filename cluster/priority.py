"""Work behind other work: what a thread does with the processor time that nobody else wants."""

from __future__ import annotations

import os
import threading
from contextlib import suppress

_NICENESS = 19


def step_back() -> None:
    """Let all other threads compute before this one, from now on, where the system can tell threads apart."""
    with suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
