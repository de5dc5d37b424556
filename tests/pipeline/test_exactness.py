"""Resume is exact, also from tokens in an object store, and the number of workers changes nothing but the order of
floating-point sums. These runs use real gloo ranks, DeepSpeed ZeRO, Ray and SIGKILL."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
import psutil
import pytest
import torch
from ray.cluster_utils import Cluster
from safetensors.torch import load_file

from cluster.artefacts.storage import is_committed
from cluster.publication import push
from pipeline.checkpoint.checkpoint import MODEL_FILE, list_checkpoints, step_of
from pipeline.checkpoint.references import resolve_model, with_logged_model
from pipeline.inspect.lineage import trace
from pipeline.pretrain.launch import create_run, execute
from pipeline.pretrain.resume_checks import check_resume
from pipeline.run.directory import RunDirectory
from pipeline.run.events import Event
from pipeline.run.lifecycle import replay
from pipeline.run.log.lines import read_metrics
from pipeline.run.state import process_of, read_heartbeats, state_of
from pipeline.run.tracking import connect
from tests.object_store import behind_proxy, running_store
from tests.pipeline.command import invoke
from tests.pipeline.fork_client import Forked
from tests.pipeline.process_group import ONE_THREAD, PATIENCE_S, Group, forked, wait_until
from tests.pipeline.ranks import final_state, make_config, make_run, start_ranks, train
from tests.surroundings import plain_environment

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


def losses(run: RunDirectory) -> list[float]:
    return [metrics["loss"] for metrics in read_metrics(run)]


def wait_for_step(run: RunDirectory, step: int, group: Group | None = None) -> None:
    """Wait until `step` is in the log."""
    wait_until(lambda: any(metrics["step"] >= step for metrics in read_metrics(run)), group)


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


def test_loss_of_two_terms_with_tokens_drawn_while_training_is_the_same_on_one_and_two_workers(
    tmp_path: Path, store: Path
):
    electra = "{kind: rtd, rate: 0.3}"
    alone, both = (make_run(tmp_path, store, name, "steps=6", objective=electra) for name in ("1", "2"))
    train(alone, 1)
    # As an operator without Ray does it.
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [*torchrun, f"--log-dir={tmp_path / 'torchrun'}", "-m", "pipeline.pretrain", str(both.path)]
    done = subprocess.run(command, env=os.environ | ONE_THREAD, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert losses(alone) == pytest.approx(losses(both), rel=WORLD_SIZE_TOLERANCE)
    assert len(losses(alone)) == 6


URI = "s3://bucket/data/tokens"


@pytest.fixture(scope="module")
def server(store: Path) -> Iterator[str]:
    """A server with the tokens of `store` at URI."""
    with running_store() as address:
        push(store, URI)
        yield address


@pytest.fixture
def cache(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CLOZE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def weights(run: RunDirectory) -> dict[str, torch.Tensor]:
    return load_file(list_checkpoints(run.checkpoints)[-1] / MODEL_FILE)


def test_run_on_tokens_of_a_store_resumes_with_an_empty_cache_under_either_name_bit_for_bit(
    tmp_path: Path, store: Path, cache: Path, server: str
):
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    expected = make_run(tmp_path / "here", store, "run")
    train(expected, 2)
    run = make_run(tmp_path / "there", URI, "run")
    with behind_proxy(server) as proxy:
        kill_after_step(start_ranks(run, 2), run, 3)
        assert proxy.count("GET", "tokens/data-00000-of-00002.arrow") == 1
    shutil.rmtree(cache)
    group = start_ranks(run, 2)
    wait_until(lambda: list_checkpoints(run.checkpoints), group)
    assert [entry["uri"] for entry in inputs_of(run)] == [URI]
    kill_after_step(group, run, 5)
    run.reconfigure(run.config((f"data.stores.0.path={store}",)))
    train(run, 2)
    assert [entry["uri"] for entry in inputs_of(run)] == [str(store)]
    assert [row["loss"] for row in read_metrics(run)] == [row["loss"] for row in read_metrics(expected)]
    found = weights(run)
    assert all(torch.equal(tensor, found[name]) for name, tensor in weights(expected).items())
    for place in (URI, store):
        assert check_resume(run, run.config((f"data.stores.0.path={place}",)), look_only=True) is not None
    (node,) = [one for one in trace(str(run.path), tmp_path).inputs[0].inputs if one.kind == "tokens"]
    assert (node.uri, node.problem) == (str(store), "")


def inputs_of(run: RunDirectory) -> list[dict[str, Any]]:
    return orjson.loads((list_checkpoints(run.checkpoints)[-1] / "manifest.json").read_bytes())["inputs"]


@pytest.mark.parametrize("uri", [URI, URI.removesuffix("/tokens")], ids=["tokens", "out"])
def test_dry_run_fetches_no_tokens(tmp_path: Path, cache: Path, uri: str):
    make_config(tmp_path, uri)
    config = str(tmp_path / "tiny.yaml")
    done = invoke("pretrain", config, "--dry-run", "--json")
    assert orjson.loads(done.stdout)["stores to fetch"] == uri
    assert not list(cache.rglob("*.arrow"))


ENDLESS = ("steps=1000000", "evaluation.every_steps=1000000", "cluster.workers=2", "guards.grace_s=120")
NODE: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 100 * 1024**2}


@pytest.fixture
def nodes(forked_python: None) -> Iterator[Cluster]:
    """A cluster with room for one worker."""
    cluster = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
    try:
        yield cluster
    finally:
        cluster.shutdown()


@contextmanager
def resumed(run: RunDirectory) -> Iterator[tuple[Forked, Callable[[int, int], dict[str, Any]]]]:
    """`cloze resume`, without settings of this process, and a function that waits for a start on so many workers."""
    # The cluster of this process asks for a token where an earlier test has set one.
    token = {name: value for name, value in os.environ.items() if name.startswith("RAY_AUTH")}
    command = [str(Path(sys.executable).with_name("cloze")), "resume", str(run.path)]
    log = run.path / "driver.log"
    with open(os.devnull, "rb") as nothing, log.open("wb") as stream:
        streams = (nothing.fileno(), stream.fileno(), stream.fileno())
        driver = forked(command, plain_environment() | token, streams)

    def started_on(workers: int, starts: int) -> dict[str, Any]:
        """Wait for the `starts`-th start and some updates, and return the start's event."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            found, steps = run.events(Event.STARTED), [entry["step"] for entry in read_metrics(run)]
            is_there = len(found) >= starts and found[-1]["world_size"] == workers
            if is_there and [found[-1]["step"] + 30] < steps[-1:]:
                return found[-1]
            assert driver.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < deadline, log.read_text()[-3000:]
            time.sleep(0.1)

    try:
        yield driver, started_on
        # As systemd does. Ray's processes get it before the driver.
        for process in (*psutil.Process(driver.pid).children(recursive=True), driver):
            process.send_signal(signal.SIGTERM)
        assert driver.wait(timeout=PATIENCE_S) == 75, log.read_text()[-3000:]
    finally:
        driver.kill()
    assert not any(map(process_of, read_heartbeats(run)))
    newest = max(list_checkpoints(run.checkpoints), key=step_of)
    assert is_committed(newest)
    assert f"stopped at step {step_of(newest)}" in log.read_text()
    assert "Traceback" not in log.read_text()
    assert state_of(run).name == "preempted"


def test_a_stopped_rank_is_named_and_replaced_and_the_run_saves_when_it_is_stopped(
    tmp_path: Path, store: Path, forked_python: None
):
    run = make_run(
        tmp_path, store, "guarded", *ENDLESS, "guards.stall_timeout_s=15", "checkpoint.every_steps=20"
    )
    with resumed(run) as (_, started_on):
        stopped = started_on(2, 1)["workers"][1]["pid"]
        os.kill(stopped, signal.SIGSTOP)
        again = started_on(2, 2)
        assert not psutil.pid_exists(stopped)
    (stall,) = run.events(Event.STALLED)
    assert (stall["rank"], stall["pid"], stall["state"]) == (1, stopped, "stopped")
    # The stopped one itself, or one that waited for it and ended itself.
    (died,) = [event["workers"][0] for event in run.events(Event.WORKERS_LOST)]
    assert (died["rank"] == 1) == (died["pid"] == stopped)
    assert again["step"] % 20 == 0 < again["step"]


def test_run_grows_with_its_cluster_leaves_a_drained_node_before_its_deadline_and_saves_when_it_is_stopped(
    nodes: Cluster, tmp_path: Path, store: Path
):
    settings = (
        *ENDLESS,
        "cluster.min_workers=1",
        "cluster.resize_interval_s=1",
        f"cluster.address={nodes.address}",
        "checkpoint.every_steps=1000000",
    )
    run = make_run(tmp_path, store, "elastic", *settings)
    with resumed(run) as (_, started_on):
        started_on(1, 1)
        added = nodes.add_node(wait=True, **NODE)
        grown = started_on(2, 2)
        ray = str(Path(sys.executable).with_name("ray"))
        drain = [ray, "drain-node", "--address", nodes.address, "--node-id", added.node_id]
        drain += ["--reason", "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", "spot"]
        drain += ["--deadline-remaining-seconds", str(PATIENCE_S)]
        subprocess.run(drain, check=True, capture_output=True)
        shrunk = started_on(1, 3)
    saved = run.events(Event.PREEMPTED)
    assert [grown["step"], shrunk["step"]] == [event["step"] for event in saved[:2]]
    assert "SIGTERM" in saved[2]["reason"]
    first, second = run.events(Event.MOVED)
    assert first["reason"] == "from 1 to 2 workers"
    assert second["reason"].endswith("is drained")
    steps = [entry["step"] for entry in read_metrics(run)]
    assert steps == list(range(1, saved[2]["step"] + 1))
    assert run.events(Event.WORKERS_LOST) == []
