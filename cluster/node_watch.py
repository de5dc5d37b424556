"""The death of Ray's own processes under a driver, reported like any other failure.

Ray's C++ part ends a driver seconds after its node process died, or a minute after the head did, whatever Python does:
no exception can be raised. So the driver watches them itself, and ends first. Only a program that answers signals is
ended like this: others may do more than use Ray.
"""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import psutil

from cluster import logs, signals
from cluster.artefacts.errors import ClozeError, ClusterUnreachableError, PreemptedError, WorkersLostError
from cluster.connecting import host_and_port, tcp_answers
from cluster.ray_internals import NODE_PROCESS, RECONNECT_VARIABLE, own_raylet_socket

RECONNECT_S = 60.0
"""Ray's own value of `RECONNECT_VARIABLE`."""
_SHARE = 0.75
"""This program ends after this share of those seconds: before Ray ends it."""
_POLL_S = 3.0
_STOP_S = 0.5
"""Seconds until the signal that ended Ray also reaches this program."""
_ending = threading.Lock()
"""Held by the thread that ends this program."""


@contextmanager
def cluster_watched() -> Iterator[None]:
    """Inside the block, end this program with exit code 30 when the node process of this machine dies, and with 31 when
    the head of the connected cluster stays away."""
    import ray

    socket = own_raylet_socket()
    if socket is None or not signals.answers_signals():
        yield
        return
    over = threading.Event()
    watches: dict[str, tuple[Callable[..., None], object]] = {
        "ray-head": (_watch_head, ray.get_runtime_context().gcs_address)
    }
    for process in psutil.process_iter(["name"]):
        with suppress(psutil.Error, OSError):
            if process.info["name"] == NODE_PROCESS and any(socket in word for word in process.cmdline()):
                watches["ray-node"] = (_watch_node, os.pidfd_open(process.pid))
                break
    for name, (watch, subject) in watches.items():
        threading.Thread(target=watch, args=(subject, over), name=name, daemon=True).start()
    try:
        yield
    finally:
        over.set()


def _watch_node(descriptor: int, over: threading.Event) -> None:
    select.select([descriptor], [], [])
    os.close(descriptor)
    message = (
        f"Ray's node process ({NODE_PROCESS}) on this machine died, and its tasks with it. The kernel's log says so"
        " if it was out of memory (`dmesg | grep -i kill`)."
    )
    _end(WorkersLostError, message, over)


def _watch_head(address: str, over: threading.Event) -> None:
    host, port = host_and_port(address, 0)
    patience_s = _SHARE * float(os.environ.get(RECONNECT_VARIABLE, RECONNECT_S))
    answered_s = time.monotonic()
    while time.monotonic() - answered_s < patience_s:
        if over.wait(_POLL_S):
            return
        if tcp_answers(host, port):
            answered_s = time.monotonic()
    message = f"The head of the Ray cluster at {address} has not answered for {patience_s:.0f} s."
    _end(ClusterUnreachableError, message, over)


def _end(error_class: type[ClozeError], message: str, over: threading.Event) -> None:
    # Ending the children ends what the other thread watches. Where a whole machine is stopped, Ray may end first.
    if over.wait(_STOP_S) or signals.received() or not _ending.acquire(blocking=False):
        return
    # Ray's threads are about to print pages of the dead process's log.
    stderr, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    kept, next_step = signals.continuation()
    if stop := signals.asked():
        error_class = PreemptedError
        message = f"Ended by {signal.Signals(stop).name}, which ended Ray's processes before all was saved."
    error = error_class(message, kept=kept, next_step=next_step)
    signals.end_children()
    os.write(stderr, logs.as_written(f"\n{error}", "error").encode())
    os._exit(error.exit_code)
