"""Resume is exact, and the number of workers changes nothing but the order of floating-point sums.

These runs use real gloo ranks, DeepSpeed ZeRO and SIGKILL.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import threading
import time
from pathlib import Path

import psutil
import pytest
import torch

from pipeline.checkpoint.checkpoint import list_checkpoints, step_of
from pipeline.checkpoint.references import resolve_model, with_logged_model
from pipeline.pretrain.launch import create_run, execute
from pipeline.run.directory import RunDirectory
from pipeline.run.events import Event
from pipeline.run.lifecycle import replay
from pipeline.run.log.lines import read_metrics
from pipeline.run.tracking import connect
from tests.pipeline.process_group import PATIENCE_S, Group
from tests.pipeline.ranks import make_config, make_run, start_ranks, train, train_by_torchrun
from tests.pipeline.run_state import final_state

WORLD_SIZE_TOLERANCE = 1e-5
"""Largest relative difference of any step's loss between 1, 2 and 4 workers, in fp32. Measured: about 1e-7."""
WHOLE = (
    "steps=60",
    "checkpoint.every_steps=20",
    "ema.decay=0.9",
    "batch.phases=[{steps: 30, sequence_length: 24}]",
    "batch.warmup=[{steps: 10, samples: 16}]",
    "batch.samples=32",
    "guards.spike_score=1000",
)
"""A run with everything that has a state: an average, a phase, growing batches, a window of losses; of more than four
epochs."""
SHORT = (
    *WHOLE,
    "steps=24",
    "checkpoint.every_steps=8",
    "batch.phases=[{steps: 12, sequence_length: 24}]",
)
SHARDED = ("zero.stage=3", "precision=bf16", "steps=40", "checkpoint.every_steps=10", "ema.decay=0.9")


def losses(run: RunDirectory) -> list[float]:
    return [metrics["loss"] for metrics in read_metrics(run)]


def wait_for_step(run: RunDirectory, step: int, group: Group | None = None) -> None:
    """Wait until `step` is in the log."""
    deadline = time.monotonic() + PATIENCE_S
    while not any(metrics["step"] >= step for metrics in read_metrics(run)):
        assert group is None or group.poll() is None, group.output[-3000:]
        assert time.monotonic() < deadline
        time.sleep(0.01)


def kill_after_step(group: Group, run: RunDirectory, step: int, after_s: float = 0.0) -> None:
    """SIGKILL all ranks and what they started, `after_s` after `step` is in the log."""
    wait_for_step(run, step, group)
    time.sleep(after_s)
    for pid in group.pids:
        for child in psutil.Process(pid).children(recursive=True):
            child.kill()
    group.kill()


def kill_one_worker(run: RunDirectory, step: int) -> None:
    """SIGKILL the last rank once `step` is in the log."""
    wait_for_step(run, step)
    os.kill(run.events(Event.STARTED)[-1]["workers"][-1]["pid"], signal.SIGKILL)


def assert_everything_is_in_mlflow_once(run: RunDirectory, steps: int) -> None:
    """One MLflow run, with each step's loss once and each kept checkpoint as a version."""
    assert replay(run)
    info = run.info
    client = connect(info.tracking_uri)
    runs = client.search_runs([client.get_run(info.run_id).info.experiment_id])
    assert [found.info.run_id for found in runs] == [info.run_id]
    history = client.get_metric_history(info.run_id, "loss")
    assert sorted(metric.step for metric in history) == list(range(1, steps + 1))
    assert [metric.value for metric in sorted(history, key=lambda metric: metric.step)] == losses(run)
    evaluations = client.get_metric_history(info.run_id, "held_out_loss")
    assert sorted(metric.step for metric in evaluations) == list(range(0, steps + 1, 6))
    versions = client.search_model_versions(f"name = '{info.name}'")
    assert sorted(int(version.tags["cloze.step"]) for version in versions) == [40, 60]
    for reference in (f"models:/{info.name}@latest", f"{info.run_id}@60"):
        assert resolve_model(reference, run.path.parent).reference == f"{info.name}@60"
    best = resolve_model(f"models:/{info.name}@best", run.path.parent)
    assert with_logged_model(best, run.path.parent).model_id


def assert_equal_states(expected: RunDirectory, found: RunDirectory) -> None:
    """Weights, their average and the optimizer's state are equal, bit for bit."""
    state, other = final_state(expected), final_state(found)
    assert state.keys() == other.keys()
    assert any(name.endswith("ema") for name in state)
    assert any("exp_avg_sq" in name for name in state)
    for name, tensor in state.items():
        assert torch.equal(tensor, other[name]), name


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory, store: Path) -> RunDirectory:
    run = make_run(tmp_path_factory.mktemp("whole"), store, "whole", *WHOLE)
    train(run, 2)
    held_out = read_metrics(run, "held_out")
    assert held_out[-1]["loss"] < held_out[0]["loss"] - 0.05
    assert [step_of(path) for path in list_checkpoints(run.checkpoints)] == [40, 60]
    return run


def test_a_run_of_24_steps_is_resumed_bit_for_bit_and_on_one_worker_and_back_but_for_rounding(
    tmp_path: Path, store: Path
):
    whole, killed = (make_run(tmp_path, store, name, *SHORT) for name in ("whole", "killed"))
    train(whole, 2)
    kill_after_step(start_ranks(killed, 2), killed, 13)
    alone = RunDirectory(shutil.copytree(killed.path, killed.path.with_name("alone")))
    train(killed, 2)
    assert losses(killed) == losses(whole)
    assert_equal_states(whole, killed)
    kill_after_step(start_ranks(alone, 1), alone, 19)
    train(alone, 2)
    assert [start["world_size"] for start in alone.events(Event.STARTED)] == [2, 1, 2]
    assert losses(alone) == pytest.approx(losses(whole), rel=WORLD_SIZE_TOLERANCE)


def test_resumed_run_is_bit_identical_to_uninterrupted_run(
    uninterrupted: RunDirectory, tmp_path: Path, store: Path
):
    run = create_run(make_config(tmp_path, store, *WHOLE))
    # In the first phase; while the checkpoint behind its end is written; between two; always somewhere in a step.
    generator = random.Random(7)
    for step in (25, 40, 47):
        kill_after_step(start_ranks(run, 2), run, step, after_s=generator.uniform(0, 0.05))
    train(run, 2)

    assert len(run.events(Event.STARTED)) == 4
    assert_everything_is_in_mlflow_once(run, steps=60)
    assert losses(run) == losses(uninterrupted)
    assert read_metrics(run, "held_out")[-1]["loss"] == read_metrics(uninterrupted, "held_out")[-1]["loss"]
    assert_equal_states(uninterrupted, run)


def test_a_worker_killed_under_ray_is_replaced_and_the_run_ends_bit_identical(
    uninterrupted: RunDirectory, tmp_path: Path, store: Path, forked_python: None
):
    run = create_run(make_config(tmp_path, store, *WHOLE, "cluster.workers=2"))
    killer = threading.Thread(target=kill_one_worker, args=(run, 25), daemon=True)
    killer.start()
    execute(run)
    killer.join()

    assert [start["step"] for start in run.events(Event.STARTED)] == [0, 20]
    assert losses(run) == losses(uninterrupted)
    assert_equal_states(uninterrupted, run)
    assert_everything_is_in_mlflow_once(run, steps=60)


@pytest.mark.parametrize("workers", [1, 4])
def test_any_number_of_workers_computes_the_same_run(
    workers: int, uninterrupted: RunDirectory, tmp_path: Path, store: Path
):
    run = make_run(tmp_path, store, "other", *WHOLE)
    train(run, workers)
    assert losses(run) == pytest.approx(losses(uninterrupted), rel=WORLD_SIZE_TOLERANCE)


def test_sharded_parameters_in_bf16_are_resumed_bit_for_bit(tmp_path: Path, store: Path):
    whole, killed = (make_run(tmp_path, store, name, *SHARDED) for name in ("whole", "killed"))
    train(whole, 2)
    kill_after_step(start_ranks(killed, 2), killed, 23)
    train(killed, 2)
    assert losses(killed) == losses(whole)
    assert_equal_states(whole, killed)


def test_loss_of_two_terms_with_tokens_drawn_while_training_is_the_same_on_one_and_two_workers(
    tmp_path: Path, store: Path
):
    electra = "{kind: rtd, rate: 0.3}"
    alone, both = (make_run(tmp_path, store, name, "steps=6", objective=electra) for name in ("1", "2"))
    train(alone, 1)
    train_by_torchrun(both, 2)
    assert losses(alone) == pytest.approx(losses(both), rel=WORLD_SIZE_TOLERANCE)
    assert len(losses(alone)) == 6
