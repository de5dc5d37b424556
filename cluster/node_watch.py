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
from collections.abc import Iterator
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


@contextmanager
def cluster_watched() -> Iterator[None]:
    """Inside the block, end this program with exit code 30 when the node process of this machine dies, and with 31 when
    the head of the connected cluster stays away."""
    import ray

    socket = own_raylet_socket()
    if socket is None or not signals.answers_signals():
        yield
        return
    node = None
    for process in psutil.process_iter(["name"]):
        with suppress(psutil.Error, OSError):
            if process.info["name"] == NODE_PROCESS and any(socket in word for word in process.cmdline()):
                node = os.pidfd_open(process.pid)
                break
    over, head = threading.Event(), ray.get_runtime_context().gcs_address
    threading.Thread(target=_watch, args=(node, head, over), name="ray-watch", daemon=True).start()
    try:
        yield
    finally:
        over.set()


def _watch(node: int | None, head: str, over: threading.Event) -> None:
    host, port = host_and_port(head, 0)
    patience_s = _SHARE * float(os.environ.get(RECONNECT_VARIABLE, RECONNECT_S))
    answered_s = time.monotonic()
    dies: tuple[type[ClozeError], str] | None = None
    while dies is None and not over.is_set():
        if select.select([] if node is None else [node], [], [], _POLL_S)[0]:
            message = (
                f"Ray's node process ({NODE_PROCESS}) on this machine died, and its tasks with it. The kernel's log"
                " says so if it was out of memory (`dmesg | grep -i kill`)."
            )
            dies = WorkersLostError, message
        elif tcp_answers(host, port):
            answered_s = time.monotonic()
        elif time.monotonic() - answered_s >= patience_s:
            message = f"The head of the Ray cluster at {head} has not answered for {patience_s:.0f} s."
            dies = ClusterUnreachableError, message
    if node is not None:
        os.close(node)
    if dies is not None:
        _end(*dies, over)


def _end(error_class: type[ClozeError], message: str, over: threading.Event) -> None:
    # Where a whole machine is stopped, Ray may end first.
    if over.wait(_STOP_S) or signals.received():
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
