"""A real MLflow server that hangs, fails, dies and comes back, beside a run that goes on logging."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from subprocess import PIPE
from typing import Any

import psutil
import pytest
from mlflow import MlflowClient

from pipeline.checkpoint.checkpoint import list_checkpoints, step_of
from pipeline.run.directory import RunDirectory, RunInfo
from pipeline.run.log.lines import LogKind, entries_from, read_metrics
from pipeline.run.log.log import RunLog
from pipeline.run.log.mlflow_sink import send_log, send_to_mlflow, want_status
from pipeline.run.model_versions import find_version, logged_models, register_checkpoint
from pipeline.run.tracking import TrackedRun, connect, start_run
from tests.pipeline.mlflow_server import Server, wait_until
from tests.pipeline.one_rank import endings
from tests.pipeline.process_group import PATIENCE_S, run_group
from tests.pipeline.ranks import free_port, make_config, tied

STEP_S = 0.005


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("server"))
    yield server
    server.kill()


@pytest.fixture
def tracked(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TrackedRun:
    """A run on the server. Requests are given up after two seconds; the server carries out some of them later."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.uri)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "2")
    return start_run("test", tmp_path.name, config={"a": 1}, tags={}, runs_dir=tmp_path / "runs")


class Training:
    """What rank 0 does besides training: it logs, and tells the sender."""

    def __init__(self, directory: Path, tracked: TrackedRun, name: str) -> None:
        self.directory, self.name, self.step = directory, name, 0
        run = RunDirectory(directory)
        self.log = RunLog(run)
        self.sender = send_to_mlflow(tied(run, tracked.uri, tracked.run_id, name))

    def train(self, duration_s: float) -> None:
        """Log steps for a while, with a checkpoint in the middle and an event at the end."""
        end = self.step + int(duration_s / STEP_S)
        middle = (self.step + end) // 2
        while self.step < end:
            self.step += 1
            self.log.write("train", self.step, {"loss": 1 / self.step, "lr": 1e-3 * self.step})
            if self.step == middle:
                place = {"directory": str(self.directory / f"step-{self.step}"), "fingerprint": "f"}
                self.log.write(
                    "checkpoint", self.step, place | {"best": True, "metrics": {"held_out_loss": 2.0}}
                )
            time.sleep(STEP_S)
        self.log.event("spike", self.step, {"loss": 9.0, "reason": "far from the median"})


def test_a_run_goes_on_through_every_outage_and_everything_arrives_once(
    server: Server, tracked: TrackedRun, tmp_path: Path
):
    training = Training(tmp_path, tracked, "outages")
    training.train(2.0)
    server.signal(signal.SIGSTOP)
    training.train(3.0)
    server.signal(signal.SIGCONT)
    training.train(2.0)
    with sqlite3.connect(server.database, timeout=30) as database:
        # Every request that writes is answered with an error of the server.
        database.execute("BEGIN EXCLUSIVE")
        training.train(2.0)
        database.rollback()
    training.train(1.0)
    server.kill()
    training.train(2.0)
    server.start()
    training.train(1.0)
    training.log.close()
    training.sender.close(timeout_s=30)
    want_status(RunDirectory(tmp_path), "FINISHED")
    send_log(tied(RunDirectory(tmp_path), tracked.uri, tracked.run_id, "outages"))

    log = [entry for entry, _ in entries_from(RunDirectory(tmp_path))]
    rows = server.metric_rows(tracked.run_id)
    for name in ("loss", "lr"):
        assert rows[name] == [(e["step"], e["data"][name]) for e in log if e["kind"] == "train"], name
    assert rows["spike/loss"] == [(e["step"], 9.0) for e in log if e["kind"] == "spike"]
    client = connect(tracked.uri)
    steps = [entry["step"] for entry in log if entry["kind"] == "checkpoint"]
    versions = client.search_model_versions("name = 'outages'")
    assert sorted(int(version.tags["cloze.step"]) for version in versions) == steps
    for step in steps:
        (model,) = logged_models(client, tracked.run_id, step)
        version = find_version(client, "outages", step)
        assert version.tags["cloze.model_id"] == model.model_id
        assert (str(model.status), [metric.value for metric in model.metrics]) == ("READY", [2.0])
    assert client.get_model_version_by_alias("outages", "best").tags["cloze.step"] == str(steps[-1])
    assert client.get_run(tracked.run_id).info.status == "FINISHED"


class BlackHole:
    """Accepts connections and never answers; knows which processes have connected."""

    def __init__(self, connected: Path) -> None:
        """
        Args:
            connected: a file that is made at the first connection.
        """
        self._connected = connected
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.clients: set[int | None] = set()
        """Process ids."""
        self._kept: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, address = self.listener.accept()
                self._kept.append(connection)
                ends = psutil.net_connections("tcp")
                self.clients |= {end.pid for end in ends if tuple(end.laddr) == address}
                self._connected.touch()

    def close(self) -> None:
        for one in (self.listener, *self._kept):
            one.close()


class GivenUpOnce(MlflowClient):
    """Gives up a registration that the server carries out all the same, and repeats it."""

    def create_model_version(self, *arguments: Any, **settings: Any) -> Any:
        super().create_model_version(*arguments, **settings)
        return super().create_model_version(*arguments, **settings)


def test_a_registration_that_is_carried_out_twice_leaves_one_version(tracked: TrackedRun, tmp_path: Path):
    client, known = GivenUpOnce(tracked.uri), {"run_id": tracked.run_id, "directory": str(tmp_path)}
    own: Any = {"name": "twice", "step": 7, "metrics": {}, "best": True, "tags": {}, "time_ms": 0}
    model_id = register_checkpoint(client, **known, **own)
    (version,) = client.search_model_versions("name = 'twice'")
    assert version.tags["cloze.model_id"] == model_id
    assert client.get_model_version_by_alias("twice", "best").version == version.version


def test_processes_that_begin_an_embedded_store_together_all_get_their_run(tmp_path: Path):
    begin = (
        "import sys; from pathlib import Path; from pipeline.run.tracking import start_run;"
        "import mlflow, mlflow.store.db.utils; print('ready', flush=True); sys.stdin.readline();"
        "print(start_run('e', 'n', config={}, tags={}, runs_dir=Path(sys.argv[1])).run_id)"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_")}
    command = [sys.executable, "-c", begin, str(tmp_path / "runs")]
    processes: list[Any] = [
        subprocess.Popen(command, env=environment, stdin=PIPE, stdout=PIPE, text=True) for _ in range(3)
    ]
    assert [process.stdout.readline() for process in processes] == ["ready\n"] * 3
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    found = {process.communicate(timeout=PATIENCE_S)[0] for process in processes}
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert len(found) == 3


@pytest.mark.parametrize("answers", ["never", "with a refusal"])
def test_no_part_of_training_connects_to_tracking_or_waits_for_it(answers: str, tmp_path: Path, store: Path):
    hole = BlackHole(tmp_path / "connected")
    port = hole.port if answers == "never" else free_port()
    if answers == "with a refusal":
        (tmp_path / "connected").touch()
    config = make_config(tmp_path, store, "guards.spike_score=1000")
    run, stacks = RunDirectory(config.runs_dir / "run"), tmp_path / "stacks"
    run.create(RunInfo(name="run", run_id="0" * 32, tracking_uri=f"http://127.0.0.1:{port}"), config)
    # No request is given up: whatever waited for one would not come back.
    patience = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "100000"}
    senders = set()
    for attempt in ("from the beginning", "from a checkpoint"):
        output = run_group("tests.pipeline.watched_rank", [port, tmp_path, run.path], 1, patience)
        assert endings(output) == ["ended"], (attempt, output)
        assert not stacks.exists(), (attempt, stacks.read_text())
        senders.add(int(run.log_sender.read_text().split()[1]))
        steps = [step_of(checkpoint) for checkpoint in list_checkpoints(run.checkpoints)]
        assert (steps, [e["step"] for e in read_metrics(run, LogKind.HELD_OUT)]) == ([8, 12], [0, 6, 12])
        assert [step["step"] for step in read_metrics(run)] == list(range(1, 13))
        shutil.rmtree(list_checkpoints(run.checkpoints)[-1])
    assert [event["event"] for event in run.events()].count("tracking-behind") == 2
    assert hole.clients <= senders
    assert answers != "never" or hole.clients
    hole.close()


def test_a_checkpoint_whose_registration_broke_off_has_one_model_and_one_version_in_the_end(
    tracked: TrackedRun, tmp_path: Path
):
    client = connect(tracked.uri)
    experiment = client.get_run(tracked.run_id).info.experiment_id
    of_run: Any = {"source_run_id": tracked.run_id, "tags": {"cloze.step": "7"}}
    orphans = [client.create_logged_model(experiment, "step-00000007", **of_run) for _ in range(2)]
    run = tied(RunDirectory(tmp_path), tracked.uri, tracked.run_id, "orphans")
    log = RunLog(run)
    data = {"directory": str(tmp_path), "fingerprint": "f", "best": False, "metrics": {"held_out_loss": 1.0}}
    log.write("checkpoint", 7, data)
    send_log(run)
    (model,) = logged_models(client, tracked.run_id, 7)
    assert model.model_id in {orphan.model_id for orphan in orphans}
    assert find_version(client, "orphans", 7).tags["cloze.model_id"] == model.model_id

    log.write("forget", 8, {"steps": [7]})
    log.close()
    send_log(run)
    assert find_version(client, "orphans", 7) is None
    assert logged_models(client, tracked.run_id, 7) == []


KILLED = """
import os, signal, sys, time
from pathlib import Path
from pipeline.run.directory import RunDirectory
from pipeline.run.log.log import RunLog
from pipeline.run.log.mlflow_sink import send_to_mlflow
from tests.pipeline.ranks import tied
run, uri, run_id = RunDirectory(Path(sys.argv[1])), sys.argv[2], sys.argv[3]
log = RunLog(run)
sender = send_to_mlflow(tied(run, uri, run_id, "killed"))
print(sender.pid, flush=True)
for step in range(1, 101):
    log.write("train", step, {"killed": step})
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_run_leaves_a_sender_that_sends_the_rest_says_so_and_ends(
    server: Server, tracked: TrackedRun, tmp_path: Path
):
    command = [sys.executable, "-c", KILLED, str(tmp_path), tracked.uri, tracked.run_id]
    killed = subprocess.run(command, stdout=PIPE, check=False)
    assert killed.returncode == -signal.SIGKILL
    sender = int(killed.stdout)
    wait_until(
        lambda: not psutil.pid_exists(sender) or psutil.Process(sender).status() == psutil.STATUS_ZOMBIE
    )
    assert server.metric_rows(tracked.run_id)["killed"] == [(step, step) for step in range(1, 101)]
    client = connect(tracked.uri)
    assert client.get_run(tracked.run_id).info.status == "KILLED"
    resumed = send_to_mlflow(tied(RunDirectory(tmp_path), tracked.uri, tracked.run_id, "killed"))
    wait_until(lambda: client.get_run(tracked.run_id).info.status == "RUNNING")
    assert resumed.close() == ""
    assert client.get_run(tracked.run_id).info.status == "RUNNING", "how it ended is for its driver to say"


def test_a_run_that_failed_is_not_said_to_be_killed(tracked: TrackedRun, tmp_path: Path):
    client, run = connect(tracked.uri), tied(RunDirectory(tmp_path), tracked.uri, tracked.run_id, "failed")
    client.set_terminated(tracked.run_id, "FAILED")
    want_status(run, "KILLED")
    send_log(run)
    assert client.get_run(tracked.run_id).info.status == "FAILED"
