"""Sends a run's log to MLflow, from a process of its own: `python -m pipeline.run.log.sender` beside rank 0.

A process and not a thread, because building requests takes the interpreter's lock from the training loop, and because
a request that hangs must not keep a worker from ending. It cannot affect the run: it reads `log.jsonl` from the
offset in `log.sent`, and ends when rank 0 does, however that ends.

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
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson

from cluster.artefacts.credentials import connection_uri
from cluster.artefacts.manifest import write_durably
from cluster.artefacts.private import lock
from pipeline.run.directory import RunDirectory
from pipeline.run.events import Event
from pipeline.run.log.kinds import LogKind
from pipeline.run.log.lines import entries_from, log_size
from pipeline.run.model_versions import forget_checkpoint, mark_best, register_checkpoint
from pipeline.run.tracking import connect, log_changed_settings, told_of

METRIC_PREFIXES = {
    LogKind.STEP: "",
    LogKind.HELD_OUT: "held_out_",
    LogKind.SYSTEM: "system/",
    LogKind.RANKS: "ranks/",
    LogKind.SAVING: "saving/",
}
"""Kinds of entries that are metrics, with what stands before their names in MLflow. `system/` is MLflow's own name for
them: its pages show those apart."""
EVENT_TAG = "cloze.last_{kind}"
"""Tag of a run: the newest event of a kind, such as `cloze.last_spike`, as JSON."""
FINAL_STATUSES = ("FINISHED", "FAILED", "KILLED")
_MAX_METRICS_PER_BATCH = 1000
POLL_S = 1.0
"""Seconds between two looks for lines to send."""
RETRY_S = (1.0, 2.0, 5.0, 10.0, 30.0)
_LAST_TRIES = 2
"""Tries to send the rest of the log when the run has ended and the store does not answer."""
_ORPHAN_S = 30
"""Seconds that the process has to send the rest of the log after rank 0 was killed."""
GOODBYE = b"!"
"""Rank 0's last word. A pipe that closes without it means that rank 0 died."""
_NOT_IN_A_KEY = re.compile(r"[^\w\-. :/]")


class Sender:
    """The sending process of a run, as rank 0 sees it. Nothing here waits for the tracking store but `close`."""

    def __init__(self, run: RunDirectory, *, uri: str, run_id: str, model_name: str) -> None:
        self._run, self._uri = run, uri
        command = [sys.executable, "-m", "pipeline.run.log.sender", str(run.path.resolve())]
        command += ["--run-id", run_id, "--model-name", model_name]
        self._process: subprocess.Popen[bytes] | None = None
        self._problem = ""
        try:
            want_status(run, "RUNNING")
            self._process = start_beside(command, run.log_errors, _environment(uri))
        except OSError as error:
            # No process, no memory, no room: training does without, and `close` tells.
            self._problem = str(error)
            return
        with contextlib.suppress(OSError):
            write_durably(run.log_sender, _owner(self._process.pid))

    @property
    def pid(self) -> int | None:
        """The process that sends; None when it could not be started."""
        return None if self._process is None else self._process.pid

    def close(self, timeout_s: float = 30.0) -> str:
        """Send the rest of the log, for at most `timeout_s`. Returns why entries stay unsent, or an empty string."""
        output = b""
        if self._process is not None:
            output = say_goodbye(self._process, timeout_s)
        if unsent_bytes(self._run) == 0:
            return ""
        reason = output.decode(errors="replace").strip() or self._problem or f"see {self._run.log_errors}"
        return f"{self._uri} did not take everything ({reason})"


def start_beside(
    command: Sequence[str], errors: Path, environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start a process that sends a log until its standard input ends.

    Raises:
        OSError: no process, no memory, no room.
    """
    with errors.open("wb") as stream:
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stream,
            env=environment,
            # Signals for the training's process group (Ctrl-C, a scheduler's SIGTERM) are not for it: it ends when
            # rank 0 has nothing more to say.
            start_new_session=True,
        )


def say_goodbye(process: subprocess.Popen[bytes], timeout_s: float) -> bytes:
    """Let a sending process send the rest, for at most `timeout_s`; returns its last words."""
    try:
        return process.communicate(GOODBYE, timeout=timeout_s)[0]
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return b"it is slow"


def unsent_bytes(run: RunDirectory) -> int:
    """Bytes of the log that MLflow has not got."""
    return log_size(run) - read_offset(run.log_sent)


def send_from_start(run: RunDirectory) -> None:
    """Have the next `send_log`, of this process or of one that sends already, send the whole log.

    Raises:
        TimeoutError: another process does not end its request.
    """
    with _one_sender(run, 30.0):
        run.log_sent.unlink(missing_ok=True)
        if reconfigured := run.events(Event.RECONFIGURED):
            write_durably(run.log_settings, str(reconfigured[-1]["before"]).encode())


def want_status(run: RunDirectory, status: str) -> None:
    """Set the run's status in MLflow once a `send_log` has sent everything, now or days later.

    Args:
        status: `RUNNING`, `FINISHED`, `FAILED`, or `KILLED` for a run that was preempted or stopped.
    """
    write_durably(run.log_status, status.encode())


def send_log(
    run: RunDirectory, *, uri: str, run_id: str, model_name: str, lock_timeout_s: float = 30.0
) -> None:
    """Send every unsent entry, in order, then the wanted status; raises what MLflow raises and keeps what was sent.

    Args:
        lock_timeout_s: how long to wait for another process that is sending the same log.

    Raises:
        TimeoutError: another process is still sending it.
    """
    with _one_sender(run, lock_timeout_s):
        if unsent_bytes(run) > 0 or run.log_status.exists() or run.log_settings.exists():
            _Sending(connect(uri), run, run_id, model_name).send()


class _Sending:
    """One pass over the unsent entries."""

    def __init__(self, client: Any, run: RunDirectory, run_id: str, model_name: str) -> None:
        self._client, self._run = client, run
        self._run_id, self._model_name = run_id, model_name
        self._pending: list[Any] = []
        self._done = read_offset(run.log_sent)
        """Offset behind the last entry that was read; it is sent or pending."""

    def send(self) -> None:
        status = self._wanted_status()
        if status == "RUNNING":
            # First: a run that goes on must look like one, although its last attempt failed.
            self._set_status(status)
        for entry, behind in entries_from(self._run, self._done):
            if entry["kind"] in METRIC_PREFIXES:
                self._pending.extend(_metrics_of(entry))
                self._done = behind
                if len(self._pending) >= _MAX_METRICS_PER_BATCH:
                    self._flush()
            else:
                self._flush()
                _ACTIONS.get(entry["kind"], _tell)(self._client, self._run_id, self._model_name, entry)
                self._done = behind
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


def numbers_of(entry: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of an entry by the names that they have in tracking stores."""
    prefix = METRIC_PREFIXES.get(entry["kind"], f"{entry['kind']}/")
    return {
        _NOT_IN_A_KEY.sub("_", f"{prefix}{name}"): float(value)
        for name, value in entry["data"].items()
        if isinstance(value, int | float)
    }


def _metrics_of(entry: Mapping[str, Any]) -> list[Any]:
    from mlflow.entities import Metric

    return [Metric(name, value, entry["time_ms"], entry["step"]) for name, value in numbers_of(entry).items()]


def _tell(client: Any, run_id: str, model_name: str, entry: Mapping[str, Any]) -> None:
    """Log an event: its numbers as points of metrics such as `spike/loss`, the newest event as a whole as a tag."""
    from mlflow.entities import RunTag

    del model_name
    whole = orjson.dumps({"step": entry["step"], "time_ms": entry["time_ms"], **entry["data"]}).decode()
    key = _NOT_IN_A_KEY.sub("_", EVENT_TAG.format(kind=entry["kind"]))
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
    _tell(client, run_id, model_name, entry)


_ACTIONS = {LogKind.CHECKPOINT: _register, LogKind.FORGET: _forget, LogKind.ROLLED_BACK: _roll_back}


def read_offset(path: Path) -> int:
    """Bytes of the log that were sent; 0 without a file that remembers them."""
    return int(path.read_text()) if path.exists() else 0


@contextmanager
def _one_sender(run: RunDirectory, timeout_s: float) -> Iterator[None]:
    """Lock the log against a second sender, which would begin at the same offset: that leaves metrics right, but not
    the order of events."""
    descriptor = os.open(run.log_sent_lock, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        deadline = time.monotonic() + timeout_s
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


def _environment(uri: str) -> dict[str, str]:
    """The environment of the sending process: it imports from the same places, sees no GPU, and repeats requests in its
    own loop only. The store's URI is here and not among its arguments, which all users of the machine can read."""
    return environment_beside() | {
        "MLFLOW_TRACKING_URI": connection_uri(uri),
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    }


def environment_beside() -> dict[str, str]:
    """The environment of a process that imports from the same places as this one and sees no GPU."""
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
    }


def main() -> None:
    """Send until standard input ends, and then the rest."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("directory", type=Path)
    for name in ("--run-id", "--model-name"):
        parser.add_argument(name, required=True)
    arguments = parser.parse_args()
    run, uri = RunDirectory(arguments.directory), os.environ["MLFLOW_TRACKING_URI"]
    speak_last(lambda: keep_sending(run, uri=uri, run_id=arguments.run_id, model_name=arguments.model_name))


def speak_last(keep_sending: Callable[[], str]) -> None:
    """Send, behind processes that train; print nothing but why something stays unsent."""
    with contextlib.suppress(OSError):
        os.nice(10)
    with contextlib.redirect_stdout(sys.stderr):
        reason = keep_sending()
    with contextlib.suppress(OSError):
        sys.stdout.write(reason[:1000])
        sys.stdout.flush()


def keep_sending(run: RunDirectory, *, uri: str, run_id: str, model_name: str) -> str:
    """Send what comes, again and again until it works; end when rank 0 does. Returns why something stays unsent, or an
    empty string."""
    failures, last_tries, killed = 0, _LAST_TRIES, False
    word: bytes | None = None
    while True:
        if word is None:
            word = last_word(RETRY_S[min(failures, len(RETRY_S)) - 1] if failures else POLL_S)
        else:
            time.sleep(POLL_S)
        reason = ""
        try:
            if word == b"" and not killed and _is_newest(run):
                want_status(run, "KILLED")
                killed = True
            send_log(run, uri=uri, run_id=run_id, model_name=model_name)
            failures = 0
        except Exception as error:
            # Whatever it is, the entries stay in the log, and it is tried again.
            failures, reason = failures + 1, told_of(error)
        if word is not None:
            last_tries -= 1
            # No process waits for this one when rank 0 is dead: it tries until its time is over.
            if not failures or (word == GOODBYE and not last_tries):
                return reason


def last_word(timeout_s: float) -> bytes | None:
    """Rank 0's last word, which is empty when it died; None when it said nothing for so long."""
    if not select.select([0], [], [], timeout_s)[0]:
        return None
    # This process outlives rank 0 by so much at most.
    signal.alarm(_ORPHAN_S)
    return os.read(0, len(GOODBYE))


def _is_newest(run: RunDirectory) -> bool:
    """Whether this process sends for the newest attempt at the run."""
    owner = run.log_sender
    return owner.exists() and owner.read_bytes() == _owner(os.getpid())


def _owner(pid: int) -> bytes:
    return f"{platform.node()} {pid}".encode()


if __name__ == "__main__":
    main()
