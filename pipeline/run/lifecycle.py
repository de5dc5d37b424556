"""The launch and the end of an attempt, in the run's history and in MLflow: as its driver records them, and where the
driver was killed, as any verb does that looks at the run.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress

from cluster.artefacts.credentials import refused
from cluster.artefacts.errors import ClozeError, PreemptedError, StorageError, TakenOverError
from cluster.artefacts.owner import this_process
from pipeline.run.directory import RunDirectory
from pipeline.run.events import Event
from pipeline.run.history import last_logged
from pipeline.run.log.mlflow_sink import send_log, unsent_bytes, want_status
from pipeline.run.state import is_held, state_of
from pipeline.run.submission import JOB_VARIABLE

SENT_ON_THE_WAY_BYTES = 1 << 20
"""Bytes that a command that looks at a run sends in a few seconds."""


def record_launch(run: RunDirectory) -> None:
    """Record this process as the driver of the run."""
    run.record_event(Event.LAUNCHED, **this_process(), submission_id=os.environ.get(JOB_VARIABLE))


def record_failure(run: RunDirectory, error: BaseException) -> None:
    """Record why an attempt at a run ended. One that another group has taken over has not."""
    if isinstance(error, TakenOverError):
        return
    status = "KILLED" if isinstance(error, PreemptedError | KeyboardInterrupt) else "FAILED"
    # A disk that is full must not hide why the run ended.
    with suppress(OSError, StorageError):
        run.record_event(Event.FAILED, error=type(error).__name__, message=str(error)[:2000])
    with suppress(OSError, StorageError):
        want_status(run, status)


def record_end(run: RunDirectory) -> None:
    """Record the end of a run and its step."""
    last = last_logged(run)
    run.record_event(Event.FINISHED, step=0 if last is None else last[0])
    want_status(run, "FINISHED")


def reconcile(run: RunDirectory, *, send: bool = True) -> bool:
    """Record a run's end in history and MLflow if its processes could not; False if the tracking store does not answer.

    Args:
        send: whether to send the log to MLflow now; if not, the next command does. If more than
            `SENT_ON_THE_WAY_BYTES` of the log are missing there, only `cloze runs replay` sends it.
    """
    # Looking at a run must not fail because a file of it cannot be read or written.
    with suppress(ClozeError, OSError):
        state, events = state_of(run), run.events()
        if state.name == "lost" and events[-1]["event"] != Event.LOST:
            run.record_event(Event.LOST, message=state.detail)
            want_status(run, "FAILED")
        elif state.name == "finished" and not is_held(run) and not run.events(Event.FINISHED):
            record_end(run)
    with suppress(ClozeError):
        return not send or unsent_bytes(run) > SENT_ON_THE_WAY_BYTES or not _is_ours(run) or replay(run)
    return True


def _is_ours(run: RunDirectory) -> bool:
    """Whether a run is tracked in a file, or in the store that is in force here. A run that was copied from a stranger
    may name any address, and this process would send its credentials there."""
    from pipeline.run.tracking import tracking_uri

    uri = run.info.tracking_uri
    return uri.startswith("sqlite:") or uri in ("", tracking_uri(run.path.parent))


def replay(run: RunDirectory) -> bool:
    """Send the part of the log that MLflow does not have; False when the tracking store does not answer."""
    from pipeline.run.tracking import CREDENTIALS_HINT, tracking_message

    if not (uri := run.info.tracking_uri):
        return True
    try:
        send_log(run)
    except Exception as error:
        if refused(error):
            print(
                f"{uri} does not take the log of {run.path.name}: {CREDENTIALS_HINT}.",
                file=sys.stderr,
            )
        # On a disk that is full, why the run ended matters more.
        with suppress(StorageError):
            run.record_event(Event.TRACKING_BEHIND, message=tracking_message(error)[:2000])
        return False
    return True
