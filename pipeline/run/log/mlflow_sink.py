"""MLflow gets a run's log: `python -m pipeline.run.log.mlflow_sink RUN` is its sending process.

Everything arrives in order and once. Metrics may be sent again after a failure: a tracking store with a database keeps
one row per (run, key, step, time, value). Checkpoints and events are sent one by one, each in a way that repeating it
changes nothing. What was sent is remembered after every request.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import platform
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson

from cluster.artefacts.credentials import connection_uri
from cluster.artefacts.manifest import write_durably
from cluster.artefacts.private import lock
from pipeline.run.directory import RunDirectory
from pipeline.run.events import Event
from pipeline.run.log.lines import METRIC_PREFIXES, LogKind, entries_from, key_of, log_size, numbers_of
from pipeline.run.log.sender import Ending, Sender, read_offset, serve
from pipeline.run.model_versions import forget_checkpoint, mark_best, register_checkpoint
from pipeline.run.tracking import connect, log_changed_settings, tracking_message

EVENT_TAG = "cloze.last_{kind}"
"""Tag of a run: the newest event of a kind, such as `cloze.last_spike`, as JSON."""
FINAL_STATUSES = ("FINISHED", "FAILED", "KILLED")
_MAX_METRICS_PER_BATCH = 1000
_LOCK_TIMEOUT_S = 30.0
"""Seconds to wait for another process that sends the same log."""


def send_to_mlflow(run: RunDirectory, *, uri: str, run_id: str, model_name: str) -> Sender:
    """Start the process that sends a run's log to MLflow."""
    with contextlib.suppress(OSError):
        want_status(run, "RUNNING")
    sender = Sender(
        run,
        uri,
        "pipeline.run.log.mlflow_sink",
        ["--run-id", run_id, "--model-name", model_name],
        sent=run.log_sent,
        errors=run.log_errors,
        # Not among its arguments, which all users of the machine can read. Requests are repeated in one loop only.
        environment={"MLFLOW_TRACKING_URI": connection_uri(uri), "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"},
    )
    if sender.pid is not None:
        with contextlib.suppress(OSError):
            write_durably(run.log_sender, _owner(sender.pid))
    return sender


class MlflowSink:
    """The run in MLflow, as its sending process sees it."""

    def __init__(self, run: RunDirectory, *, uri: str, run_id: str, model_name: str) -> None:
        self._run, self._where = run, {"uri": uri, "run_id": run_id, "model_name": model_name}
        self._is_killed = False

    def send(self, ending: Ending | None) -> None:
        """Send what is new. A run whose newest attempt died is marked as killed."""
        owner = self._run.log_sender
        is_newest = owner.exists() and owner.read_bytes() == _owner(os.getpid())
        if ending == "killed" and not self._is_killed and is_newest:
            want_status(self._run, "KILLED")
            self._is_killed = True
        send_log(self._run, **self._where)

    def explain(self, error: Exception) -> str:
        """The message of an error, with what to do where the store wants credentials."""
        return tracking_message(error)


def unsent_bytes(run: RunDirectory) -> int:
    """Bytes of the log that MLflow has not got."""
    return log_size(run) - read_offset(run.log_sent)


def send_from_start(run: RunDirectory) -> None:
    """Have the next `send_log`, of this process or of one that sends already, send the whole log.

    Raises:
        TimeoutError: another process does not end its request.
    """
    with _one_sender(run):
        run.log_sent.unlink(missing_ok=True)
        if reconfigured := run.events(Event.RECONFIGURED):
            write_durably(run.log_settings, str(reconfigured[-1]["before"]).encode())


def want_status(run: RunDirectory, status: str) -> None:
    """Set the run's status in MLflow once a `send_log` has sent everything, now or days later.

    Args:
        status: `RUNNING`, `FINISHED`, `FAILED`, or `KILLED` for a run that was preempted or stopped.
    """
    write_durably(run.log_status, status.encode())


def send_log(run: RunDirectory, *, uri: str, run_id: str, model_name: str) -> None:
    """Send every unsent entry, in order, then the wanted status; raises what MLflow raises and keeps what was sent.

    Raises:
        TimeoutError: another process is still sending it.
    """
    with _one_sender(run):
        if unsent_bytes(run) > 0 or run.log_status.exists() or run.log_settings.exists():
            _Sending(connect(uri), run, run_id, model_name).send()


class _Sending:
    """One pass over the unsent entries."""

    def __init__(self, client: Any, run: RunDirectory, run_id: str, model_name: str) -> None:
        self._client, self._run = client, run
        self._run_id, self._model_name = run_id, model_name
        self._pending: list[Any] = []
        self._done = read_offset(run.log_sent)
        """Offset after the last entry that was read; it is sent or pending."""

    def send(self) -> None:
        status = self._wanted_status()
        if status == "RUNNING":
            # First: a run that goes on must look like one, although its last attempt failed.
            self._set_status(status)
        for entry, after in entries_from(self._run, self._done):
            if entry["kind"] in METRIC_PREFIXES:
                self._pending.extend(_metrics_of(entry))
                self._done = after
                if len(self._pending) >= _MAX_METRICS_PER_BATCH:
                    self._flush()
            else:
                self._flush()
                _ACTIONS.get(entry["kind"], _log_event)(self._client, self._run_id, self._model_name, entry)
                self._done = after
                self._remember()
        self._flush()
        if status in FINAL_STATUSES:
            self._set_status(status)
        # Last: a store that takes metrics may have nowhere to put files.
        self._send_settings()

    def _send_settings(self) -> None:
        """Log the settings in force, if they changed."""
        path = self._run.log_settings
        if path.exists():
            change = path.read_bytes()
            log_changed_settings(self._client, self._run_id, self._run.settings())
            if path.read_bytes() == change:
                path.unlink()

    def _flush(self) -> None:
        for first in range(0, len(self._pending), _MAX_METRICS_PER_BATCH):
            batch = self._pending[first : first + _MAX_METRICS_PER_BATCH]
            self._client.log_batch(self._run_id, metrics=batch)
        self._pending.clear()
        self._remember()

    def _remember(self) -> None:
        write_durably(self._run.log_sent, str(self._done).encode())

    def _wanted_status(self) -> str:
        path = self._run.log_status
        return path.read_text() if path.exists() else ""

    def _set_status(self, status: str) -> None:
        if status == "KILLED" and self._client.get_run(self._run_id).info.status != "RUNNING":
            pass  # A process that knew more has set the status.
        elif status in FINAL_STATUSES:
            self._client.set_terminated(self._run_id, status)
        else:
            self._client.update_run(self._run_id, status=status)
        if self._wanted_status() == status:
            self._run.log_status.unlink()


def _metrics_of(entry: Mapping[str, Any]) -> list[Any]:
    from mlflow.entities import Metric

    return [Metric(name, value, entry["time_ms"], entry["step"]) for name, value in numbers_of(entry).items()]


def _log_event(client: Any, run_id: str, model_name: str, entry: Mapping[str, Any]) -> None:
    """Log an event: its numbers as points of metrics such as `spike/loss`, the newest event as a whole as a tag."""
    from mlflow.entities import RunTag

    del model_name
    whole = orjson.dumps({"step": entry["step"], "time_ms": entry["time_ms"], **entry["data"]}).decode()
    key = key_of(EVENT_TAG.format(kind=entry["kind"]))
    client.log_batch(run_id, metrics=_metrics_of(entry), tags=[RunTag(key, whole[:5000])])


def _register(client: Any, run_id: str, model_name: str, entry: Mapping[str, Any]) -> None:
    data = entry["data"]
    register_checkpoint(
        client,
        run_id=run_id,
        name=model_name,
        step=entry["step"],
        directory=data["directory"],
        metrics=data["metrics"],
        best=data["best"],
        tags={"cloze.fingerprint": data["fingerprint"]},
        # The time of the evaluation's own entry: the run has the loss already, and it stays one point of its curve.
        time_ms=data.get("evaluated_ms") or entry["time_ms"],
    )


def _forget(client: Any, run_id: str, model_name: str, entry: Mapping[str, Any]) -> None:
    for step in entry["data"]["steps"]:
        forget_checkpoint(client, run_id=run_id, name=model_name, step=step)


def _roll_back(client: Any, run_id: str, model_name: str, entry: Mapping[str, Any]) -> None:
    """Remove the versions of checkpoints that were renamed, and give the alias `best` to the best one that is left."""
    _forget(client, run_id, model_name, entry)
    mark_best(client, name=model_name, step=entry["data"]["best"])
    _log_event(client, run_id, model_name, entry)


_ACTIONS = {LogKind.CHECKPOINT: _register, LogKind.FORGET: _forget, LogKind.ROLLED_BACK: _roll_back}


@contextmanager
def _one_sender(run: RunDirectory) -> Iterator[None]:
    """Lock the log against a second sender, which would begin at the same offset: that leaves metrics right, but not
    the order of events."""
    descriptor = os.open(run.log_sent_lock, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        deadline = time.monotonic() + _LOCK_TIMEOUT_S
        while True:
            try:
                lock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"another process is still sending the log of {run.path}") from None
                time.sleep(0.1)
        yield
    finally:
        os.close(descriptor)


def _owner(pid: int) -> bytes:
    return f"{platform.node()} {pid}".encode()


def main() -> None:
    """Send until standard input ends, and then the rest."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("directory", type=Path)
    for name in ("--run-id", "--model-name"):
        parser.add_argument(name, required=True)
    found = parser.parse_args()
    run, uri = RunDirectory(found.directory), os.environ["MLFLOW_TRACKING_URI"]
    serve(MlflowSink(run, uri=uri, run_id=found.run_id, model_name=found.model_name))


if __name__ == "__main__":
    main()
