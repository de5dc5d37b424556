"""A real MLflow server that hangs, fails, dies and comes back, beside a run that goes on logging."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from subprocess import PIPE
from typing import Any

import psutil
import pytest
import torch.distributed as dist
from mlflow import MlflowClient

from pipeline.checkpoint.checkpoint import list_checkpoints, step_of
from pipeline.run.directory import RunDirectory
from pipeline.run.log.lines import LogKind, entries_from, read_metrics
from pipeline.run.log.log import RunLog
from pipeline.run.log.mlflow_sink import send_log, send_to_mlflow, want_status
from pipeline.run.log.sender import Sender
from pipeline.run.model_versions import find_version, logged_models, register_checkpoint
from pipeline.run.tracking import TrackedRun, connect, start_run
from tests.pipeline.mlflow_server import Server
from tests.pipeline.process_group import on_ranks, start_on_ranks, wait_until
from tests.pipeline.ranks import Ending, make_run, tied, train_here

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


def test_no_part_of_training_waits_for_a_tracking_server_that_never_answers(tmp_path: Path, store: Path):
    run = make_run(tmp_path, store, "run", "guards.spike_score=1000")
    # No request is given up: whatever waited for one would not come back.
    patience = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "100000"}
    with socket.create_server(("127.0.0.1", 0)) as never_answers:
        tied(run, f"http://127.0.0.1:{never_answers.getsockname()[1]}", "0" * 32, "run")
        for _ in ("from the beginning", "from a checkpoint"):
            (ended,) = on_ranks(train_in_a_hurry, run.path, workers=1, environment=patience)
            assert [end.name for end in ended] == ["ended"]
            steps = [step_of(checkpoint) for checkpoint in list_checkpoints(run.checkpoints)]
            assert (steps, [e["step"] for e in read_metrics(run, LogKind.HELD_OUT)]) == ([8, 12], [0, 6, 12])
            assert [step["step"] for step in read_metrics(run)] == list(range(1, 13))
            shutil.rmtree(list_checkpoints(run.checkpoints)[-1])
    assert [event["event"] for event in run.events()].count("tracking-behind") == 2


def train_in_a_hurry(run: Path) -> list[Ending]:
    """Train, and wait at the end for a moment only, not for the 30 seconds that sending the log may take."""
    close = Sender.close
    Sender.close = lambda self, timeout_s=30.0: close(self, 0.2)  # type: ignore[method-assign]
    return train_here([run])


def test_processes_that_begin_an_embedded_store_together_all_get_their_run(tmp_path: Path):
    found = on_ranks(begin_a_run, tmp_path / "runs", workers=3)
    assert [len(run_id) for run_id in {*found}] == [32] * 3


def begin_a_run(runs_dir: Path) -> str:
    """Begin a run at the same time as the others, and not in a fork, which would have a copy of a finished store."""
    code = (
        "import sys; from pathlib import Path; import mlflow.store.db.utils;"
        "from pipeline.run.tracking import start_run; print('ready', flush=True); sys.stdin.readline();"
        "print(start_run('e', 'n', config={}, tags={}, runs_dir=Path(sys.argv[1])).run_id)"
    )
    command = [str(Path(sys.prefix, "bin", "python")), "-c", code, str(runs_dir)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_")}
    dist.init_process_group("gloo")
    with subprocess.Popen(command, env=environment, stdin=PIPE, stdout=PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        dist.barrier()
        return process.communicate("\n")[0].strip()


class GivenUpOnce(MlflowClient):
    """Gives up a registration that the server carries out all the same, and repeats it."""

    def create_model_version(self, *arguments: Any, **settings: Any) -> Any:
        super().create_model_version(*arguments, **settings)
        return super().create_model_version(*arguments, **settings)


def test_a_checkpoint_whose_registration_broke_off_or_was_repeated_has_one_model_and_one_version(
    tracked: TrackedRun, tmp_path: Path
):
    client = GivenUpOnce(tracked.uri)
    own: Any = {"name": "twice", "step": 7, "metrics": {}, "best": True, "tags": {}, "time_ms": 0}
    model_id = register_checkpoint(client, run_id=tracked.run_id, directory=str(tmp_path), **own)
    assert find_version(client, "twice", 7).tags["cloze.model_id"] == model_id
    (version,) = client.search_model_versions("name = 'twice'")
    assert client.get_model_version_by_alias("twice", "best").version == version.version

    experiment = client.get_run(tracked.run_id).info.experiment_id
    of_run: Any = {"source_run_id": tracked.run_id, "tags": {"cloze.step": "8"}}
    orphans = [client.create_logged_model(experiment, "step-00000008", **of_run) for _ in range(2)]
    run = tied(RunDirectory(tmp_path), tracked.uri, tracked.run_id, "orphans")
    data = {"directory": str(tmp_path), "fingerprint": "f", "best": False, "metrics": {"held_out_loss": 1.0}}
    with closing(RunLog(run)) as log:
        log.write("checkpoint", 8, data)
        send_log(run)
        (model,) = logged_models(client, tracked.run_id, 8)
        assert model.model_id in {orphan.model_id for orphan in orphans}
        assert find_version(client, "orphans", 8).tags["cloze.model_id"] == model.model_id
        log.write("forget", 9, {"steps": [8]})
    send_log(run)
    assert find_version(client, "orphans", 8) is None
    assert logged_models(client, tracked.run_id, 8) == []


def test_a_killed_run_leaves_a_sender_that_sends_the_rest_says_so_and_ends(
    server: Server, tracked: TrackedRun, tmp_path: Path
):
    run = tied(RunDirectory(tmp_path), tracked.uri, tracked.run_id, "killed")
    group = start_on_ranks(log_until_killed, run, workers=1)
    assert group.wait() == -signal.SIGKILL
    sender = int(group.output.split()[-1])
    wait_until(lambda: not psutil.pid_exists(sender))
    assert server.metric_rows(tracked.run_id)["killed"] == [(step, step) for step in range(1, 101)]
    client = connect(tracked.uri)
    assert client.get_run(tracked.run_id).info.status == "KILLED"
    resumed = send_to_mlflow(run)
    wait_until(lambda: client.get_run(tracked.run_id).info.status == "RUNNING")
    assert resumed.close() == ""
    assert client.get_run(tracked.run_id).info.status == "RUNNING", "how it ended is for its driver to say"


def log_until_killed(run: RunDirectory) -> None:
    # The sender is to be a child of this process, not of the fork server.
    sys.executable = str(Path(sys.prefix, "bin", "python"))
    log, sender = RunLog(run), send_to_mlflow(run)
    print(sender.pid, flush=True)
    for step in range(1, 101):
        log.write("train", step, {"killed": step})
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_run_that_failed_is_not_said_to_be_killed(tracked: TrackedRun, tmp_path: Path):
    client, run = connect(tracked.uri), tied(RunDirectory(tmp_path), tracked.uri, tracked.run_id, "failed")
    client.set_terminated(tracked.run_id, "FAILED")
    want_status(run, "KILLED")
    send_log(run)
    assert client.get_run(tracked.run_id).info.status == "FAILED"
