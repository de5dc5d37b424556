"""What `cloze runs` says of a run follows from its history and from the signs of life of its workers."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from cluster.group import GroupFailure
from pipeline.pretrain.launch import create_run
from pipeline.pretrain.lost_workers import Attempts
from pipeline.run.directory import RunDirectory, find_run_of_job
from pipeline.run.history import StoredSettings
from pipeline.run.lifecycle import SENT_ON_THE_WAY_BYTES, reconcile
from pipeline.run.log.lines import encode
from pipeline.run.log.log import RunLog
from pipeline.run.state import Heartbeat, read_heartbeats, state_of
from pipeline.run.tracking import connect
from tests.pipeline.command import cloze
from tests.pipeline.ranks import make_config, make_run, train

BEAT = """
import sys
from pathlib import Path
from pipeline.run.directory import RunDirectory
from pipeline.run.state import Heartbeat
heartbeat = Heartbeat(RunDirectory(Path(sys.argv[1])), int(sys.argv[2]), 900.0)
heartbeat.beat(7, "forward")
if sys.argv[3] == "killed":
    import os
    os._exit(1)
heartbeat.close()
"""


@pytest.fixture
def run(tmp_path: Path, store: Path) -> RunDirectory:
    return make_run(tmp_path, store, "some")


def test_last_word_of_the_history_counts(run: RunDirectory):
    assert state_of(run).name == "created"
    run.record_event("started", step=0, world_size=1)
    run.record_event("preempted", step=4, reason="SIGTERM")
    assert state_of(run).detail == "at step 4: SIGTERM"
    run.record_event("failed", error="PreemptedError", message="stopped at step 4, as asked\nmore")
    assert state_of(run).name == "preempted"
    run.record_event("started", step=4, world_size=1)
    run.record_event("failed", error="NonFiniteError", message="no finite number\nmore")
    found = state_of(run)
    assert (found.name, found.detail) == ("failed", "NonFiniteError: no finite number")
    run.record_event("started", step=4, world_size=1)
    run.record_event("finished", step=12)
    assert state_of(run).name == "finished"


def test_run_whose_worker_beats_is_running_until_a_beat_is_late(run: RunDirectory):
    run.record_event("started", step=0, world_size=1)
    with closing(Heartbeat(run, 0, 900.0)) as heartbeat:
        for step in (3, 4):
            heartbeat.beat(step, "data")
        # Of a rank that the attempt does not have.
        beaten(run, "killed", rank=3)
        found = state_of(run)
        assert found.name == "running"
        assert "rank 0" in found.detail
        assert "data of update 4" in found.detail
        for silent_s, name in ((890, "running"), (910, "stalled")):
            os.utime(run.heartbeat(0), (0, time.time() - silent_s))
            assert state_of(run).name == name


def test_run_without_ray_is_finished_in_mlflow_when_its_ranks_end(
    tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    run = create_run(make_config(tmp_path, store))
    train(run, 1)
    assert connect(run.info.tracking_uri).get_run(run.info.run_id).info.status == "FINISHED"
    assert state_of(run).name == "finished"


def test_worker_that_died_is_named_with_its_place_and_why(run: RunDirectory):
    told = {
        "The actor died unexpectedly before finishing this task. Its node has died": "its node was lost",
        "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory": "Ray ended it",
        "ActorDiedError: worker unexpectedly exits, pid=1": "killed",
        "RuntimeError: shapes differ\nValueError: 3 is odd": "raised ValueError: 3 is odd",
    }
    pids = []
    for text in told:
        beaten(run, "killed", rank=1)
        pids += [beat.pid for beat in read_heartbeats(run)]
        Attempts(run, run.config()).record(GroupFailure({1: RuntimeError(text)}))
    events = [event["workers"][0] for event in run.events()]
    assert [one["pid"] for one in events] == pids
    assert all((one["rank"], one["host"], one["step"]) == (1, platform.node(), 7) for one in events)
    for one, why in zip(events, told.values(), strict=True):
        assert why in one["why"]


def beaten(run: RunDirectory, end: str, rank: int = 0) -> None:
    """The heartbeat of a process that is gone: `killed` in the middle of a step, or `closed` in good order."""
    command = [sys.executable, "-c", BEAT, str(run.path), str(rank), end]
    done = subprocess.run(command, check=False)
    assert done.returncode == (end == "killed")


def test_list_names_states_and_last_losses_and_outlives_a_run_that_cannot_be_read(run: RunDirectory):
    run.record_event("failed", error="NonFiniteError", message="no finite number")
    log = RunLog(run)
    log.write("held_out", 0, {"loss": 6.0})
    for step in (1, 2):
        log.write("train", step, {"loss": 5.0 - step})
    log.close()
    other = RunDirectory(run.path.with_name("other"))
    other.create(run.info, run.config())
    (other.path / "config.yaml").write_text("name: other\nnews: 1\n")
    unreadable, failed = json.loads(cloze("runs", "--runs-dir", run.path.parent, "--json"))
    assert (unreadable["run"], unreadable["state"]) == ("other", "unreadable")
    found = {name: failed[name] for name in ("run", "state", "step", "steps", "loss", "metric", "held_out")}
    assert list(found.values()) == ["some", "failed", 2, 12, 3.0, "loss", 6.0]
    assert "NonFiniteError: no finite number" in cloze("runs", "--runs-dir", run.path.parent)


def test_list_leaves_a_long_log_that_is_not_sent_to_replay(run: RunDirectory):
    tracked, database = RunDirectory(run.path.with_name("tracked")), run.path.parent / "mlflow.db"
    info = run.info.model_copy(update={"name": "tracked", "tracking_uri": f"sqlite:///{database}"})
    tracked.create(info, run.config())
    tracked.record_event("failed", error="NonFiniteError", message="no finite number")
    line = encode("train", 1, 0, {"loss": 1.0, **{f"metric {n}": float(n) for n in range(40)}})
    tracked.log.write_bytes(line * (SENT_ON_THE_WAY_BYTES // len(line) + 1))
    assert "cloze runs replay tracked" in cloze("runs", "--runs-dir", run.path.parent)
    assert not database.exists()


def test_looking_at_a_run_sends_nothing_to_an_address_that_only_the_run_names(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
):
    stranger = RunDirectory(run.path.with_name("stranger"))
    info = run.info.model_copy(update={"name": "stranger", "tracking_uri": "http://stranger"})
    stranger.create(info, run.config())
    stranger.log.write_bytes(encode("train", 1, 0, {"loss": 1.0}))
    sent: list[str] = []
    monkeypatch.setattr("pipeline.run.lifecycle.send_log", lambda run: sent.append(run.info.tracking_uri))
    reconcile(stranger)
    assert not sent
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://stranger")
    reconcile(stranger)
    assert sent == ["http://stranger"]


def test_a_job_that_is_tried_again_finds_the_run_that_it_began(run: RunDirectory, tmp_path: Path):
    runs_dir = tmp_path / "jobs"
    for name, job in (("demo-1", None), ("demo-2", "job-1"), ("other-3", "job-2"), ("demo-4-5", "job-2")):
        info = run.info.model_copy(update={"name": name, "submission_id": job})
        RunDirectory(runs_dir / name).create(info, run.config())
    (runs_dir / "demo-1" / "run.json").write_text("torn")
    found = find_run_of_job("job-1", "demo", runs_dir)
    assert found is not None
    assert found.path.name == "demo-2"
    # A job may train several networks: each is a run with a name of its own.
    for job, place in (("job-2", runs_dir), ("job-3", runs_dir), ("job-1", tmp_path / "nowhere")):
        assert find_run_of_job(job, "demo", place) is None


def test_stored_settings_say_what_the_configuration_says(tmp_path: Path, store: Path):
    stages = ("batch.warmup=[{steps: 4, samples: 4}]", "batch.phases=[{steps: 6, sequence_length: 16}]")
    for name, more in (("steps", ()), ("tokens", ("steps=null", "budget={tokens: 7000}"))):
        run = make_run(tmp_path, store, name, *stages, *more)
        stored, config = StoredSettings.of(run), run.config()
        assert (stored.num_steps, stored.metric) == (config.num_steps, config.metric)
        assert stored.token_plan == config.token_plan
    assert StoredSettings.of(make_run(tmp_path, store, "time", "steps=null", "budget=2h")).num_steps is None


def test_run_whose_workers_are_gone_without_a_word_is_lost_unless_its_last_checkpoint_is_there(
    run: RunDirectory,
):
    run.record_event("started", step=0, world_size=1)
    for end in ("killed", "closed"):
        beaten(run, end)
        assert state_of(run).name == "lost"
    log = RunLog(run)
    log.write("checkpoint", 8, {"directory": "x"})
    assert state_of(run).name == "lost"
    log.write("checkpoint", 12, {"directory": "x"})
    log.close()
    assert state_of(run).name == "finished"


def test_run_whose_driver_was_killed_before_training_is_lost_everywhere(
    tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    make_config(tmp_path, store)
    launch = (
        "import sys; from pathlib import Path; from pipeline.config.loading import load_config;"
        "from pipeline.run.config import PretrainConfig; from pipeline.pretrain.launch import create_run;"
        "print(create_run(load_config(PretrainConfig, Path(sys.argv[1]), ())).path, flush=True); input()"
    )
    command = [sys.executable, "-c", launch, str(tmp_path / "tiny.yaml")]
    driver = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert driver.stdout is not None
    run = RunDirectory(Path(driver.stdout.readline().strip()))
    client = connect(run.info.tracking_uri)
    assert reconcile(run)
    assert state_of(run).name == "starting"
    driver.kill()
    driver.wait()
    for _ in range(2):
        (row,) = json.loads(cloze("runs", "--runs-dir", run.path.parent, "--json"))
        assert row["state"] == "lost"
        assert f"its driver (process {driver.pid} on" in row["detail"]
        assert client.get_run(run.info.run_id).info.status == "FAILED"
    assert [event["event"] for event in run.events()] == ["launched", "lost"]
