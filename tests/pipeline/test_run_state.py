"""What `cloze runs` says of a run follows from its history and from the signs of life of its workers."""

from __future__ import annotations

import json
import os
import platform
import time
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from cluster.artefacts.errors import StoreError
from cluster.group import GroupFailure
from pipeline.checkpoint.store import CheckpointStore
from pipeline.pretrain.launch import create_run
from pipeline.pretrain.lost_workers import Attempts
from pipeline.run.config import PretrainConfig
from pipeline.run.directory import RunDirectory, find_run_of_job, list_runs
from pipeline.run.events import Event
from pipeline.run.history import StoredSettings, list_attempts, tokens_by_step
from pipeline.run.lifecycle import SENT_ON_THE_WAY_BYTES, reconcile
from pipeline.run.log.lines import encode
from pipeline.run.log.log import RunLog
from pipeline.run.state import Heartbeat, read_heartbeats, state_of
from pipeline.run.tracking import connect
from tests.pipeline.command import cloze
from tests.pipeline.process_group import PATIENCE_S, on_ranks, start_on_ranks, wait_until
from tests.pipeline.ranks import make_config, make_run, train


@pytest.fixture
def run(tmp_path: Path, store: Path) -> RunDirectory:
    return make_run(tmp_path, store, "some")


def sibling(run: RunDirectory, name: str, **changes: Any) -> RunDirectory:
    """Another run of the same configuration."""
    other = RunDirectory(run.path.with_name(name))
    other.create(run.info.model_copy(update={"name": name, **changes}), run.config())
    return other


def beaten(run: RunDirectory, end: str, rank: int = 0) -> None:
    """The heartbeat of a process that is gone: `killed` in the middle of a step, or `closed` in good order."""
    on_ranks(beat_and_end, run, end, rank, workers=1)


def beat_and_end(run: RunDirectory, end: str, rank: int) -> None:
    heartbeat = Heartbeat(run, rank, 900.0)
    heartbeat.beat(7, "forward")
    if end == "closed":
        heartbeat.close()


def test_last_word_of_the_history_counts(run: RunDirectory):
    assert state_of(run).name == "created"
    for event, details, found in (
        (Event.PREEMPTED, {"step": 4, "reason": "SIGTERM"}, ("preempted", "at step 4: SIGTERM")),
        (Event.FAILED, {"error": "PreemptedError", "message": "a\nb"}, ("preempted", "PreemptedError: a")),
        (Event.FAILED, {"error": "NonFiniteError", "message": "a\nb"}, ("failed", "NonFiniteError: a")),
        (Event.FINISHED, {"step": 12}, ("finished", "")),
    ):
        run.record_event(Event.STARTED, step=0, world_size=1)
        assert state_of(run).name == "running"
        run.record_event(event, **details)
        assert (state_of(run).name, state_of(run).detail) == found


def test_run_whose_worker_beats_is_running_until_a_beat_is_late(run: RunDirectory):
    run.record_event(Event.STARTED, step=0, world_size=1)
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


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("The actor died unexpectedly before finishing this task. Its node has died", "its node was lost"),
        ("ray.exceptions.OutOfMemoryError: Task was killed due to the node running low", "Ray ended it"),
        ("ActorDiedError: worker unexpectedly exits, pid=1", "killed"),
        ("RuntimeError: shapes differ\nValueError: 3 is odd", "ValueError: 3 is odd"),
    ],
)
def test_worker_that_died_is_named_with_its_place_and_why(run: RunDirectory, text: str, why: str):
    beaten(run, "killed", rank=1)
    (beat,) = read_heartbeats(run)
    Attempts(run, run.config()).record(GroupFailure({1: RuntimeError(text)}))
    (lost,) = run.events()[-1]["workers"]
    assert (lost["pid"], lost["rank"], lost["host"], lost["step"]) == (beat.pid, 1, platform.node(), 7)
    assert why in lost["why"]


def test_restarts_count_again_from_a_new_checkpoint_and_a_silent_store_ends_nothing(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
):
    attempts = Attempts(run, run.config())
    found = [[4], StoreError("It does not answer."), [4], [4, 8]]
    monkeypatch.setattr(CheckpointStore, "steps", Mock(side_effect=found))
    failure = GroupFailure({0: RuntimeError("a worker died")})
    assert [attempts.record(failure) for _ in range(4)] == [True, False, False, True]
    events = [event["event"] for event in run.events()]
    assert events == [*4 * [Event.WORKERS_LOST], Event.RESTARTS_RENEWED]


def test_list_names_states_and_last_losses_and_outlives_a_run_that_cannot_be_read(run: RunDirectory):
    run.record_event(Event.FAILED, error="NonFiniteError", message="no finite number")
    log = RunLog(run)
    log.write("held_out", 0, {"loss": 6.0})
    for step in (1, 2):
        log.write("train", step, {"loss": 5.0 - step})
    log.close()
    sibling(run, "other").config_file.write_text("name: other\nnews: 1\n")
    unreadable, failed = json.loads(cloze("runs", "--runs-dir", run.path.parent, "--json"))
    assert (unreadable["run"], unreadable["state"]) == ("other", "unreadable")
    found = {name: failed[name] for name in ("run", "state", "step", "steps", "loss", "metric", "held_out")}
    assert list(found.values()) == ["some", "failed", 2, 12, 3.0, "loss", 6.0]
    assert "NonFiniteError: no finite number" in cloze("runs", "--runs-dir", run.path.parent)


def test_list_leaves_a_long_log_that_is_not_sent_to_replay(run: RunDirectory):
    database = run.path.parent / "mlflow.db"
    tracked = sibling(run, "tracked", tracking_uri=f"sqlite:///{database}")
    tracked.record_event(Event.FAILED, error="NonFiniteError", message="no finite number")
    line = encode("train", 1, 0, {f"metric {n}": float(n) for n in range(40)})
    tracked.log.write_bytes(line * (SENT_ON_THE_WAY_BYTES // len(line) + 1))
    assert "cloze runs replay tracked" in cloze("runs", "--runs-dir", run.path.parent)
    with tracked.held("a run"):
        assert "cloze runs replay" not in cloze("runs", "--runs-dir", run.path.parent)
    assert not database.exists()


def test_looking_at_a_run_sends_nothing_to_an_address_that_only_the_run_names(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
):
    stranger = sibling(run, "stranger", tracking_uri="http://stranger")
    stranger.log.write_bytes(encode("train", 1, 0, {"loss": 1.0}))
    sent: list[str] = []
    monkeypatch.setattr("pipeline.run.lifecycle.send_log", lambda run: sent.append(run.info.tracking_uri))
    reconcile(stranger)
    assert not sent
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://stranger")
    reconcile(stranger)
    assert sent == ["http://stranger"]


def test_a_job_that_is_tried_again_finds_the_run_that_it_began(run: RunDirectory, tmp_path: Path):
    for name, job in (("demo-1", None), ("demo-2", "job-1"), ("other-3", "job-2"), ("demo-4-5", "job-2")):
        sibling(run, name, submission_id=job)
    (run.path.with_name("demo-1") / "run.json").write_text("torn")
    jobs = {name: find_run_of_job(name, "demo", run.path.parent) for name in ("job-1", "job-2", "job-3")}
    # A job may train several networks: each is a run with a name of its own.
    assert jobs == {"job-1": RunDirectory(run.path.with_name("demo-2")), "job-2": None, "job-3": None}
    assert find_run_of_job("job-1", "demo", tmp_path / "nowhere") is None


def test_stored_settings_say_what_the_configuration_says(tmp_path: Path, store: Path):
    stages = ("batch.warmup=[{steps: 4, samples: 4}]", "batch.phases=[{steps: 6, sequence_length: 16}]")
    for name, more in (("steps", ()), ("tokens", ("steps=null", "budget={tokens: 7000}"))):
        run = make_run(tmp_path, store, name, *stages, *more)
        stored, config = StoredSettings.of(run), run.config()
        assert (stored.num_steps, stored.token_plan) == (config.num_steps, config.token_plan)
    assert StoredSettings.of(make_run(tmp_path, store, "time", "steps=null", "budget=2h")).num_steps is None


def test_run_whose_workers_are_gone_without_a_word_is_lost_unless_its_last_checkpoint_is_there(
    run: RunDirectory,
):
    run.record_event(Event.STARTED, step=0, world_size=1)
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
    driver = start_on_ranks(create_and_wait, make_config(tmp_path, store), workers=1)
    wait_until(lambda: driver.output.endswith("created\n"), driver)
    (run,) = list_runs(tmp_path / "runs")
    client = connect(run.info.tracking_uri)
    assert reconcile(run)
    assert state_of(run).name == "starting"
    driver.kill()
    for _ in range(2):
        (row,) = json.loads(cloze("runs", "--runs-dir", run.path.parent, "--json"))
        assert row["state"] == "lost"
        assert f"its driver (process {driver.pids[0]} on" in row["detail"]
        assert client.get_run(run.info.run_id).info.status == "FAILED"
    assert [event["event"] for event in run.events()] == ["launched", "lost"]


def create_and_wait(config: PretrainConfig) -> None:
    create_run(config)
    print("created", flush=True)
    time.sleep(PATIENCE_S)


def test_tokens_follow_warm_up_phases_and_what_was_changed_on_the_way(tmp_path: Path, store: Path):
    stages = ("batch.warmup=[{steps: 4, samples: 4}]", "batch.phases=[{steps: 6, sequence_length: 16}]")
    run = make_run(tmp_path, store, "changed", "steps=30", *stages)
    expected = [run.config().tokens_before(step) for step in range(1, 11)]
    expected += [expected[-1] + 8 * 32 * step for step in range(1, 21)]
    run.record_event(Event.STARTED, step=0, world_size=1)
    run.record_event(Event.STARTED, step=20, world_size=1)
    run.reconfigure(make_config(tmp_path, store, "steps=30", *stages, "batch.samples=8"))
    run.record_event(Event.STARTED, step=10, world_size=1)
    assert [*map(tokens_by_step(run), range(1, 31))] == expected
    # Without its first line.
    run.history.write_bytes(run.history.read_bytes()[9:])
    assert len(list_attempts(run.events())) == 2
    assert [*map(tokens_by_step(run), range(1, 31))] == expected
