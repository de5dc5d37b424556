"""Watch Ray's node process (raylet) on this machine, and end the driver with an explanation when it dies."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

from cluster import logs, signals
from cluster.artefacts.errors import WorkersLostError

_NODE_PROCESS = "raylet"


@contextmanager
def own_node_watched() -> Iterator[None]:
    """Inside the block, end this program with the exit code of lost workers when the node process dies.

    Ray's C++ part exits seconds after its node died, whatever Python does, so no exception can be raised. Only a
    program that answers signals is ended like this: others may do more than use Ray.
    """
    found = [child for child in psutil.Process().children() if child.name() == _NODE_PROCESS]
    if not found or not signals.answers_signals():
        yield
        return
    over = threading.Event()
    descriptor = os.pidfd_open(found[0].pid)
    threading.Thread(target=_watch, args=(descriptor, over), name="ray-node", daemon=True).start()
    try:
        yield
    finally:
        over.set()


def _watch(descriptor: int, over: threading.Event) -> None:
    select.select([descriptor], [], [])
    os.close(descriptor)
    if over.is_set() or signals.received():
        return
    # Ray's threads are about to print pages of the dead process's log.
    stderr, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    kept, next_step = signals.continuation()
    error = WorkersLostError(
        f"Ray's node process ({_NODE_PROCESS}) on this machine died, and its tasks with it. The kernel's log says so"
        " if it was out of memory (`dmesg | grep -i kill`).",
        kept=kept,
        next_step=next_step,
    )
    signals.end_children()
    os.write(stderr, logs.as_written(f"\n{error}", "error").encode())
    os._exit(error.exit_code)
