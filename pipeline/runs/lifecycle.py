"""The launch and the end of an attempt, as its driver records them: in the run's history, and for MLflow."""

from __future__ import annotations

import platform
from contextlib import suppress

import psutil

from cluster.artefacts.errors import PreemptedError, StorageError
from pipeline.runs.directory import RunDirectory
from pipeline.runs.events import Event
from pipeline.runs.heartbeat import this_machine
from pipeline.runs.history import last_logged
from pipeline.runs.log.sender import want_status


def record_launch(run: RunDirectory) -> None:
    """Record this process as the driver of the run."""
    process = psutil.Process()
    run.record_event(
        Event.LAUNCHED,
        host=platform.node(),
        machine=this_machine(),
        pid=process.pid,
        started_s=process.create_time(),
    )


def record_failure(run: RunDirectory, error: BaseException) -> None:
    """Record why an attempt at a run ended."""
    status = "KILLED" if isinstance(error, PreemptedError | KeyboardInterrupt) else "FAILED"
    # A disk that is full must not hide why the run ended.
    with suppress(OSError, StorageError):
        run.record_event(Event.FAILED, error=type(error).__name__, message=str(error)[:2000])
    with suppress(OSError, StorageError):
        want_status(run, status)


def record_end(run: RunDirectory) -> None:
    """Record that a run came to its end, and at which step."""
    last = last_logged(run)
    run.record_event(Event.FINISHED, step=0 if last is None else last[0])
    want_status(run, "FINISHED")
