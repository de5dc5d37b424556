"""The log of a training run: every step is written to disk first, and sent to MLflow from there.

`log.jsonl` in the run's directory is append-only and is the truth; a thread sends it on in order. A tracking
store that is down, slow or restarted costs training nothing. What was sent is remembered as a byte offset;
sending a line twice changes nothing in MLflow, because a metric is stored once per (key, step, time, value).
A resumed run repeats the steps after its checkpoint; those that are in the log already are not written again.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from cluster.manifest import write_durably
from pipeline.tracking import connect, forget_checkpoint, register_checkpoint

LOG_NAME = "log.jsonl"
SENT_NAME = "log.sent"
_MAX_METRICS_PER_BATCH = 1000
_RETRY_S = (1.0, 2.0, 5.0, 10.0, 30.0)


class RunLog:
    """Appends entries to `log.jsonl`. Only rank 0 has one."""

    def __init__(self, run_directory: Path) -> None:
        self._path = run_directory / LOG_NAME
        _drop_torn_line(self._path)
        self._last: dict[str, int] = {}
        for entry in read_log(run_directory):
            self._last[entry["kind"]] = max(entry["step"], self._last.get(entry["kind"], -1))
        self._stream = self._path.open("ab")

    def write(self, kind: str, step: int, data: Mapping[str, Any]) -> bool:
        """Append an entry unless this kind already has one for `step` or later; returns whether it did."""
        if step <= self.last_step(kind):
            return False
        entry = {"kind": kind, "step": step, "time_ms": int(time.time() * 1000), "data": dict(data)}
        self._stream.write(orjson.dumps(entry) + b"\n")
        self._stream.flush()
        self._last[kind] = step
        return True

    def last_step(self, kind: str) -> int:
        """Step of the newest entry of this kind; -1 when there is none."""
        return self._last.get(kind, -1)

    def close(self) -> None:
        """Close the file; everything was flushed when it was written."""
        self._stream.close()


def read_log(run_directory: Path) -> list[dict[str, Any]]:
    """Every whole entry of a run's log, in order."""
    return read_new(run_directory, 0)[0]


def read_new(run_directory: Path, offset: int) -> tuple[list[dict[str, Any]], int]:
    """The whole entries from byte `offset` on, and the offset behind them."""
    path = run_directory / LOG_NAME
    if not path.exists():
        return [], offset
    with path.open("rb") as stream:
        stream.seek(offset)
        data = stream.read()
    whole = data[: data.rfind(b"\n") + 1]
    return [orjson.loads(line) for line in whole.splitlines()], offset + len(whole)


def read_metrics(run_directory: Path, kind: str = "train") -> list[dict[str, Any]]:
    """The metrics of each logged step, as dicts with `step` added."""
    return [{"step": e["step"], **e["data"]} for e in read_log(run_directory) if e["kind"] == kind]


class Sender:
    """Sends a run's log to MLflow from a thread."""

    def __init__(self, run_directory: Path, *, uri: str, run_id: str, model_name: str) -> None:
        self._directory = run_directory
        self._uri, self._run_id, self._model_name = uri, run_id, model_name
        self._wake, self._closing = threading.Event(), threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="mlflow-sender", daemon=True)
        self._thread.start()

    def notify(self) -> None:
        """Say that there may be something to send."""
        self._wake.set()

    def close(self, timeout_s: float = 30.0) -> str:
        """Send what is left, for at most `timeout_s`. Returns why entries stay unsent, or an empty string."""
        self._closing.set()
        self._wake.set()
        self._thread.join(timeout_s)
        if self._error is not None or self._thread.is_alive():
            return f"{self._uri} did not take everything ({self._error or 'it is slow'})"
        return ""

    def _run(self) -> None:
        failures = 0
        while True:
            self._wake.wait(_RETRY_S[min(failures, len(_RETRY_S)) - 1] if failures else None)
            closing = self._closing.is_set()
            self._wake.clear()
            try:
                send_log(self._directory, uri=self._uri, run_id=self._run_id, model_name=self._model_name)
                failures, self._error = 0, None
            except Exception as error:
                # Tracking must never stop training: whatever it is, keep it for the closing message and try
                # again later. The entries stay in the log.
                failures, self._error = failures + 1, error
            if closing:
                return


def send_log(run_directory: Path, *, uri: str, run_id: str, model_name: str) -> None:
    """Send every unsent entry, in order; raises what MLflow raises and keeps what was sent."""
    client = connect(uri)
    sent_path = run_directory / SENT_NAME
    sent = int(sent_path.read_text()) if sent_path.exists() else 0
    path = run_directory / LOG_NAME
    if not path.exists() or path.stat().st_size <= sent:
        return
    with path.open("rb") as stream:
        stream.seek(sent)
        pending: list[Any] = []
        for line in stream:
            if not line.endswith(b"\n"):
                break
            entry = orjson.loads(line)
            if entry["kind"] in _EVENTS:
                _flush(client, run_id, pending)
                _EVENTS[entry["kind"]](client, run_id, model_name, entry)
            else:
                metrics = _metrics_of(entry)
                if len(pending) + len(metrics) > _MAX_METRICS_PER_BATCH:
                    _flush(client, run_id, pending)
                    write_durably(sent_path, str(sent).encode())
                pending.extend(metrics)
            sent += len(line)
        _flush(client, run_id, pending)
        write_durably(sent_path, str(sent).encode())


def _metrics_of(entry: Mapping[str, Any]) -> list[Any]:
    from mlflow.entities import Metric

    prefix = "" if entry["kind"] == "train" else f"{entry['kind']}_"
    return [
        Metric(f"{prefix}{name}", float(value), entry["time_ms"], entry["step"])
        for name, value in entry["data"].items()
    ]


def _flush(client: Any, run_id: str, pending: list[Any]) -> None:
    if pending:
        client.log_batch(run_id, metrics=pending)
        pending.clear()


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
    )


def _forget(client: Any, run_id: str, model_name: str, entry: Mapping[str, Any]) -> None:
    for step in entry["data"]["steps"]:
        forget_checkpoint(client, name=model_name, step=step)


_EVENTS = {"checkpoint": _register, "forget": _forget}


def _drop_torn_line(path: Path) -> None:
    """Cut off a last line that a killed process left unfinished."""
    if not path.exists():
        return
    data = path.read_bytes()
    whole = data.rfind(b"\n") + 1
    if whole != len(data):
        os.truncate(path, whole)
