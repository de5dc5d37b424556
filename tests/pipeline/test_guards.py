"""How runs end: memory that runs out, workers left behind or silent, a directory in use."""

from __future__ import annotations

import faulthandler
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cluster.artefacts.errors import OutOfMemoryError, ResumeRefusedError, StorageError, TakenOverError
from cluster.artefacts.manifest import MANIFEST_NAME
from cluster.artefacts.owner import exclusive
from cluster.group import Rank
from pipeline.checkpoint.checkpoint import (
    checkpoint_name,
    list_checkpoints,
    read_trainer_state,
    step_of,
)
from pipeline.checkpoint.store import store_of
from pipeline.plan.plan import advise
from pipeline.pretrain import launch, ownership
from pipeline.pretrain.lost_workers import count_oom_kills, explain_killed_worker, memory_explained
from pipeline.pretrain.ownership import Fence
from pipeline.pretrain.resume_checks import check_resume
from pipeline.pretrain.stall_watch import StallWatch, watching
from pipeline.run import state
from pipeline.run.directory import RunDirectory
from pipeline.run.events import Event
from pipeline.run.log.lines import LogKind, read_metrics
from pipeline.run.log.log import RunLog, damage_of_log
from pipeline.run.skipped_data import SkipLedger, SkippedStep
from pipeline.run.state import ENDED, Heartbeat, process_of, read_heartbeats
from tests.pipeline.command import cloze, invoke
from tests.pipeline.process_group import Group, start_on_ranks, wait_until
from tests.pipeline.ranks import make_run, start_ranks
from tests.pipeline.small_checkpoints import state_at, write_files

Body = Callable[[RunDirectory, Heartbeat], None]


def start(run: RunDirectory, body: Body, rank: int = 0, timeout_s: float = 900.0) -> Group:
    """A process with a heartbeat that went on once."""
    return start_on_ranks(beat_first, run, body, rank, timeout_s, workers=1)


def beat_first(run: RunDirectory, body: Body, rank: int, timeout_s: float) -> None:
    heartbeat = Heartbeat(run, rank, timeout_s)
    heartbeat.beat(1, "data")
    heartbeat.beat(2, "data")
    body(run, heartbeat)


def start_beating(run: RunDirectory, body: Body | None = None) -> Group:
    """A process that gave signs of life as rank 0 of a run, and is there until it is killed."""
    group = start(run, body or stuck_here)
    wait_until(lambda: "ready" in group.output, group)
    return group


def stuck_here(run: RunDirectory, heartbeat: Heartbeat) -> None:
    print("ready", flush=True)
    time.sleep(600)


def stuck_here_with_the_lock_of_the_interpreter(run: RunDirectory, heartbeat: Heartbeat) -> None:
    sum(range(10**14))


def end_and_stay(run: RunDirectory, heartbeat: Heartbeat) -> None:
    heartbeat.close()
    stuck_here(run, heartbeat)


def beat_on(run: RunDirectory, heartbeat: Heartbeat) -> None:
    print("ready", flush=True)
    while True:
        heartbeat.beat(3, "data")


@pytest.fixture
def run(tmp_path: Path, store: Path) -> RunDirectory:
    return make_run(tmp_path, store, "ending")


def test_a_beat_says_where_the_rank_stands_and_which_process_it_is(run: RunDirectory):
    process = start_beating(run)
    (pid,), (beat,) = process.pids, read_heartbeats(run)
    assert (beat.rank, beat.pid, beat.step, beat.part) == (0, pid, 2, "data")
    assert getattr(process_of(beat), "pid", None) == pid
    # Another process with the same number, after this one ended, was born at another time.
    assert process_of(beat.model_copy(update={"pid": os.getpid()})) is None
    process.kill()
    assert process_of(beat) is None


@pytest.mark.parametrize("body", [stuck_here, stuck_here_with_the_lock_of_the_interpreter])
def test_a_process_that_stands_still_writes_its_stacks_and_ends(run: RunDirectory, body: Body):
    assert start(run, body, rank=3, timeout_s=0.3).wait() == 1
    (stacks,) = run.stacks.iterdir()
    assert stacks.name.startswith("rank-00003-")
    assert "stuck_here" in stacks.read_text()


def test_rank_zero_without_a_driver_names_who_stood_still_and_ends_with_the_exit_code_of_stalls(
    tmp_path: Path, store: Path
):
    run = make_run(tmp_path, store, "stalled", "guards.stall_timeout_s=3")
    process = start(run, stand_still_under_watch, timeout_s=3.0)
    assert process.wait() == 34, process.output
    assert "rank 0 (process" in process.output
    (failed,) = run.events(Event.FAILED)
    assert failed["error"] == "StalledError"
    (stacks,) = run.stacks.glob("rank-00000-*")
    assert "stuck_here" in stacks.read_text()


def stand_still_under_watch(run: RunDirectory, heartbeat: Heartbeat) -> None:
    # Without its alarm, which might come first on a busy machine.
    faulthandler.cancel_dump_traceback_later()
    with watching(run, without_driver=True):
        stuck_here(run, heartbeat)


def test_every_beat_sets_the_alarm_anew_and_the_end_cancels_it_and_leaves_no_stacks(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
):
    alarms: list[float | None] = []
    now_s = 0.0
    monkeypatch.setattr(faulthandler, "dump_traceback_later", lambda later_s, **_: alarms.append(later_s))
    monkeypatch.setattr(faulthandler, "cancel_dump_traceback_later", lambda: alarms.append(None))
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    with closing(Heartbeat(run, 3, timeout_s=3.0)) as heartbeat:
        for step in range(40):
            now_s += 2.0
            heartbeat.beat(step, "data")
            assert len(alarms) == step + 2
            # The first step has ten times as long.
            assert read_heartbeats(run)[0].timeout_s == (30.0 if step == 0 else 3.0)
    assert alarms[2:] == [alarms[2]] * 39 + [None]
    assert 3.0 < (alarms[2] or 0) < 4.0
    assert list(run.stacks.iterdir()) == []
    assert [(beat.step, beat.part) for beat in read_heartbeats(run)] == [(39, ENDED)]


@pytest.mark.parametrize(
    "ask_for_much",
    [lambda: torch.empty(10**15), lambda: np.ones(10**15), lambda: bytearray(10**15)],
    ids=["torch", "numpy", "python"],
)
def test_memory_that_runs_out_is_told_with_what_would_fit_in_the_first_update_and_later_costs_a_restart(
    ask_for_much, run: RunDirectory, monkeypatch
):
    with pytest.raises(OutOfMemoryError) as caught, memory_explained(run, 0):
        ask_for_much()
    assert caught.value.exit_code == 37
    assert "4 samples of 32 tokens" in caught.value.problem
    assert caught.value.next_step == advise(run.config())
    # In the first exchange, too.
    monkeypatch.setattr(launch, "from_rank_zero", lambda _: ask_for_much())
    with pytest.raises(OutOfMemoryError):
        launch.run_rank(run.path, Rank(0, 1, 0, torch.get_num_threads()))
    start_beating(run).kill()
    assert read_heartbeats(run)[0].num_steps == 1
    with pytest.raises((RuntimeError, MemoryError)), memory_explained(run, 0):
        ask_for_much()
    with pytest.raises(RuntimeError, match="mat1"), memory_explained(run, 0):
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")


@pytest.mark.parametrize(
    ("failure", "oom_kills", "told"),
    [
        ("Worker unexpectedly exits", 0, None),
        ("Worker unexpectedly exits", 2, "2 processes"),
        ("ray.exceptions.OutOfMemoryError: killed", 0, "nearly full"),
        ("a\nRuntimeError: CUDA out of memory. Tried\nb", 0, "CUDA out of memory."),
    ],
)
def test_killed_workers_are_explained_by_what_torch_ray_and_the_kernel_say(
    failure: str, oom_kills: int, told: str | None, run: RunDirectory
):
    assert count_oom_kills() >= 0
    error = explain_killed_worker(failure, oom_kills, run.config())
    assert error is None if told is None else error is not None and told in error.problem


def test_a_worker_left_behind_is_ended_before_the_run_is_trained_again_unless_it_came_to_its_end(
    run: RunDirectory, monkeypatch
):
    monkeypatch.setattr(ownership, "PATIENCE_S", 0.2)
    ended = start_beating(run, end_and_stay)
    ownership.end_leftovers(run)
    assert ended.poll() is None
    ended.kill()
    process = start_beating(run)
    ownership.end_leftovers(run)
    assert process.wait() == -9
    assert [event["pid"] for event in run.events() if event["event"] == "leftover-killed"] == process.pids
    assert read_heartbeats(run) == []


def test_a_worker_of_another_machine_is_in_the_way_as_long_as_it_makes_progress(
    run: RunDirectory, monkeypatch
):
    monkeypatch.setattr(state, "this_machine", lambda: "another")
    process = start_beating(run, beat_on)
    # The age of its beats says nothing: clocks differ.
    with pytest.raises(StorageError, match=f"process {process.pids[0]}"):
        ownership.end_leftovers(run)
    process.kill()
    monkeypatch.setattr(ownership, "OBSERVATION_S", 1.5)
    ownership.end_leftovers(run)
    assert list(run.heartbeats.iterdir()) == []


def test_a_group_that_was_cut_off_publishes_and_logs_nothing_when_it_comes_back(run: RunDirectory):
    old = Fence(run)
    old.require()
    with closing(RunLog(run, is_lost=lambda: old.is_lost(now=True))) as cut_off:
        cut_off.write(LogKind.STEP, 1, {"loss": 3.0})
        with closing(RunLog(run)) as log:
            new = Fence(run)
            log.write(LogKind.STEP, 2, {"loss": 2.0})
            assert not cut_off.write(LogKind.STEP, 2, {"loss": 2.0})
            assert not cut_off.event(LogKind.SPIKE, 2, {})
            log.write(LogKind.STEP, 3, {"loss": 1.0})
    assert [entry["step"] for entry in read_metrics(run)] == [1, 2, 3]
    assert damage_of_log(run) == ""
    with pytest.raises(TakenOverError, match=f"process {os.getpid()}"):
        old.require()
    new.require()
    assert old.is_lost()
    assert not new.is_lost()


def test_a_run_that_was_moved_is_lost_and_said_to_be_gone(run: RunDirectory):
    fence = Fence(run)
    run.path.rename(run.path.with_name("elsewhere"))
    assert fence.is_lost(now=True)
    with pytest.raises(StorageError, match="is not there any more"):
        fence.require()


def test_ranks_that_lose_the_run_end_and_its_checkpoints_stay_the_other_groups(run: RunDirectory):
    group = start_ranks(run, 2)
    wait_until(lambda: list_checkpoints(run.checkpoints), group)
    other = Fence(run)
    there = set(list_checkpoints(run.checkpoints))
    assert group.wait() == 39, group.output[-3000:]
    assert not any(event["event"] == "failed" for event in run.events())
    other.require()
    assert len(set(list_checkpoints(run.checkpoints)) - there) <= 1  # one may have been past the check
    assert f"process {os.getpid()}" in group.output


def test_ranks_are_told_settings_and_left_out_data_by_the_first(run: RunDirectory):
    SkipLedger(run).add(SkippedStep(at_update=4, data_step=4, loss=9.0, score=12.0))
    start_on_ranks(train_with_one_view, run.path, workers=2).finish()
    state = read_trainer_state(max(list_checkpoints(run.checkpoints), key=step_of))
    assert (state.step, state.skipped_data) == (12, [4])


def train_with_one_view(run: Path) -> None:
    """Train where only the first rank may read the run's settings and what was left out of its data."""
    from pipeline.pretrain.__main__ import main

    def refuse(*_: object) -> Any:
        raise AssertionError("a rank other than 0 reads for itself")

    if os.environ["RANK"] != "0":
        RunDirectory.config = refuse  # type: ignore[method-assign, assignment]
        RunDirectory.skipped = property(refuse)  # type: ignore[assignment]
    sys.argv[1:] = [str(run)]
    main()


def test_nobody_else_resumes_a_run_from_its_new_settings_to_its_end_which_names_its_checkpoints(
    tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch
):
    run = make_run(tmp_path, store, "elsewhere", f"checkpoint.directory={tmp_path / 'kept'}")
    command = [sys.executable, "-m", "pipeline.cli", "resume", str(run.path), "optimizer.lr=0.5"]

    def training(one: RunDirectory, **_: object) -> None:
        assert one.config().optimizer.lr == 1e-3
        second = subprocess.run(command, capture_output=True, text=True)
        assert second.returncode == 33, second.stderr
        assert f"process {os.getpid()}" in second.stderr
        assert one.config().optimizer.lr == 1e-3
        write_files(store_of(run), state_at(4, 2.0))

    monkeypatch.setattr(launch, "execute", training)
    assert json.loads(cloze("resume", run.path, "--json"))["checkpoints"] == [
        str(tmp_path / "kept/elsewhere/step-00000004")
    ]
    shutil.rmtree(tmp_path / "kept")
    done = invoke("resume", run.path, catch_exceptions=False)
    assert f"cloze checkpoints {run.typed}" in done.output


def test_the_watch_names_a_silent_rank_once_and_ends_it_when_it_does_not_end_itself(run: RunDirectory):
    process = start_beating(run)
    watch = StallWatch(run)
    for now in (0.0, 800.0):
        watch.look(now)
    assert watch.stalls == []
    for now in (811.0, 850.0):
        watch.look(now)
    (stall,) = watch.stalls
    assert (stall.beat.pid, stall.beat.step, stall.beat.part, stall.waiting) == (*process.pids, 2, "data", ())
    assert process.poll() is None
    watch.look(1000.0)
    assert process.wait() == -9
    assert [event["event"] for event in run.events()] == ["stalled", "killed"]
    (last,) = read_heartbeats(run)
    assert watch.last_of([last]) == stall
    assert watch.last_of([last.model_copy(update={"step": 3})]) is None


def test_a_directory_in_use_is_refused_without_a_word_in_its_history(run: RunDirectory):
    with exclusive(run.path, "somebody else"):
        group = start_ranks(run, 1)
        assert group.wait() == 33
    assert "somebody else" in group.output
    assert run.events() == []


def test_checkpoints_are_not_left_behind_by_a_change_of_their_directory(run: RunDirectory, tmp_path: Path):
    elsewhere = run.config((f"checkpoint.directory={tmp_path / 'elsewhere'}",))
    assert check_resume(run, elsewhere) is None
    newest = run.checkpoints / checkpoint_name(4)
    newest.mkdir()
    (newest / MANIFEST_NAME).write_text("{}")
    with pytest.raises(ResumeRefusedError) as caught:
        check_resume(run, elsewhere)
    assert str(tmp_path / "elsewhere") in caught.value.next_step
