"""MLflow gets a run's log: `python -m pipeline.run.log.mlflow_sink RUN` is its sending process.

Everything arrives in order and once. Metrics may be sent again after a failure: a tracking store with a database keeps
one row per (run, key, step, time, value). Checkpoints and events are sent one by one, each in a way that repeating it
changes nothing. What was sent is remembered after every request.
"""

from __future__ import annotations

import contextlib
import os
import platform
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson

from cluster.artefacts.credentials import connection_uri
from cluster.artefacts.manifest import write_durably
from cluster.artefacts.owner import lock
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


def send_to_mlflow(run: RunDirectory) -> Sender:
    """Start the process that sends a run's log to the MLflow run that the run is tied to."""
    uri = run.info.tracking_uri
    with contextlib.suppress(OSError):
        want_status(run, "RUNNING")
    sender = Sender(
        run,
        uri,
        "pipeline.run.log.mlflow_sink",
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

    def __init__(self, run: RunDirectory) -> None:
        self._run, self._info = run, run.info
        self._is_killed = False
        self._client: Any = None
        self._pending: list[Any] = []
        self._done = 0
        """Offset after the last entry that was read; it is sent or pending."""

    def send(self, ending: Ending | None = None) -> None:
        """Send every unsent entry, in order, then the wanted status. A run whose newest attempt died is marked as
        killed.

        Raises:
            TimeoutError: another process is still sending it.
            Exception: as MLflow raises it; what was sent is remembered.
        """
        run, owner = self._run, self._run.log_sender
        was_killed = ending == "killed" and not self._is_killed and owner.exists()
        if was_killed and owner.read_bytes() == _owner(os.getpid()):
            want_status(run, "KILLED")
            self._is_killed = True
        with _one_sender(run):
            if unsent_bytes(run) <= 0 and not run.log_status.exists() and not run.log_settings.exists():
                return
            self._client = connect(self._info.tracking_uri)
            status = self._wanted_status()
            if status == "RUNNING":
                # First: a continued run must look like a running one, although its last attempt failed.
                self._set_status(status)
            self._send_entries()
            if status in FINAL_STATUSES:
                self._set_status(status)
            # Last: a store that takes metrics may have nowhere to put files.
            if run.log_settings.exists():
                change = run.log_settings.read_bytes()
                log_changed_settings(self._client, self._info.run_id, run.settings())
                if run.log_settings.read_bytes() == change:
                    run.log_settings.unlink()

    def _send_entries(self) -> None:
        self._pending, self._done = [], read_offset(self._run.log_sent)
        for entry, after in entries_from(self._run, self._done):
            if entry["kind"] in METRIC_PREFIXES:
                self._pending.extend(_metrics_of(entry))
                self._done = after
                if len(self._pending) >= _MAX_METRICS_PER_BATCH:
                    self._flush()
            else:
                self._flush()
                self._send_event(entry)
                self._done = after
                self._remember()
        self._flush()

    def _send_event(self, entry: Mapping[str, Any]) -> None:
        """Register, forget or log; repeating it changes nothing."""
        from mlflow.entities import RunTag

        client, run_id, name = self._client, self._info.run_id, self._info.name
        kind, step, data = entry["kind"], entry["step"], entry["data"]
        if kind == LogKind.CHECKPOINT:
            register_checkpoint(
                client,
                run_id=run_id,
                name=name,
                step=step,
                directory=data["directory"],
                metrics=data["metrics"],
                best=data["best"],
                tags={"cloze.fingerprint": data["fingerprint"]},
                # The time of the evaluation's own entry: the run has the loss already, and it stays one point.
                time_ms=data.get("evaluated_ms") or entry["time_ms"],
            )
            return
        if kind in (LogKind.FORGET, LogKind.ROLLED_BACK):
            for gone in data["steps"]:
                forget_checkpoint(client, run_id=run_id, name=name, step=gone)
        if kind == LogKind.FORGET:
            return
        if kind == LogKind.ROLLED_BACK:
            mark_best(client, name=name, step=data["best"])
        # An event's numbers are points of metrics such as `spike/loss`; the newest event as a whole is a tag.
        whole = orjson.dumps({"step": step, "time_ms": entry["time_ms"], **data}).decode()
        tag = RunTag(key_of(EVENT_TAG.format(kind=kind)), whole[:5000])
        client.log_batch(run_id, metrics=_metrics_of(entry), tags=[tag])

    def _flush(self) -> None:
        for first in range(0, len(self._pending), _MAX_METRICS_PER_BATCH):
            batch = self._pending[first : first + _MAX_METRICS_PER_BATCH]
            self._client.log_batch(self._info.run_id, metrics=batch)
        self._pending.clear()
        self._remember()

    def _remember(self) -> None:
        write_durably(self._run.log_sent, str(self._done).encode())

    def _wanted_status(self) -> str:
        path = self._run.log_status
        return path.read_text() if path.exists() else ""

    def _set_status(self, status: str) -> None:
        if status == "KILLED" and self._client.get_run(self._info.run_id).info.status != "RUNNING":
            pass  # A process that knew more has set the status.
        elif status in FINAL_STATUSES:
            self._client.set_terminated(self._info.run_id, status)
        else:
            self._client.update_run(self._info.run_id, status=status)
        if self._wanted_status() == status:
            self._run.log_status.unlink()


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


def send_log(run: RunDirectory) -> None:
    """Send what MLflow has not got from this process, as `MlflowSink.send` does."""
    MlflowSink(run).send()


def _metrics_of(entry: Mapping[str, Any]) -> list[Any]:
    from mlflow.entities import Metric

    return [Metric(name, value, entry["time_ms"], entry["step"]) for name, value in numbers_of(entry).items()]


@contextmanager
def _one_sender(run: RunDirectory) -> Iterator[None]:
    """Lock the log against a second sender, which would begin at the same offset: that leaves metrics right, but not
    the order of events."""
    with run.log_sent_lock.open("a") as held:
        try:
            lock(held.fileno(), wait_s=_LOCK_TIMEOUT_S)
        except BlockingIOError:
            raise TimeoutError(f"another process is still sending the log of {run.path}") from None
        yield


def _owner(pid: int) -> bytes:
    return f"{platform.node()} {pid}".encode()


if __name__ == "__main__":
    serve(MlflowSink(RunDirectory(Path(sys.argv[1]))).send, tracking_message)
