"""Real groups under Ray: a stopped rank is replaced, a stopped run saves, an elastic run follows its nodes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from ray.cluster_utils import Cluster

from cluster.artefacts.storage import is_committed
from pipeline.checkpoint.checkpoint import list_checkpoints, step_of
from pipeline.run.directory import RunDirectory
from pipeline.run.events import Event
from pipeline.run.log.lines import read_metrics
from pipeline.run.state import Beat, process_of, read_heartbeats, state_of
from tests.pipeline.process_group import PATIENCE_S
from tests.pipeline.ranks import Driver, make_run

ENDLESS = ("steps=1000000", "evaluation.every_steps=1000000", "cluster.workers=2")
NODE: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 100 * 1024**2}


def rank_one(run: RunDirectory, other_than: int = 0) -> Beat | None:
    """Rank 1, once it has made some updates, in a process other than that."""
    for beat in read_heartbeats(run):
        if beat.rank == 1 and beat.num_steps > 30 and beat.pid != other_than and process_of(beat):
            return beat
    return None


def test_a_stopped_rank_is_named_and_replaced_and_a_run_saves_when_all_its_processes_are_asked_to_stop(
    tmp_path: Path, store: Path
):
    guards = ("guards.stall_timeout_s=15", "guards.grace_s=120", "checkpoint.every_steps=20")
    run = make_run(tmp_path, store, "guarded", *ENDLESS, *guards)
    driver = Driver(run, tmp_path / "driver.log")
    try:
        stopped = driver.wait_for(lambda: rank_one(run))
        os.kill(stopped.pid, signal.SIGSTOP)
        again = driver.wait_for(lambda: rank_one(run, other_than=stopped.pid))
        assert process_of(stopped) is None
        stalls = run.events(Event.STALLED)
        assert [(stall["rank"], stall["pid"], stall["state"]) for stall in stalls] == [
            (1, stopped.pid, "stopped")
        ]
        (died,) = [event["workers"][0] for event in run.events(Event.WORKERS_LOST)]
        # The stopped one itself, or one that waited for it and ended itself.
        assert died["host"] == stopped.host
        assert (died["rank"] == 1) == (died["pid"] == stopped.pid)
        assert "killed" in died["why"] or "stood still" in died["why"]
        starts = run.events(Event.STARTED)
        assert len(starts) == 2
        assert starts[1]["step"] % 20 == 0
        assert starts[1]["step"] > 0
        # As systemd does. Ray's processes get it before the driver.
        for process in (*psutil.Process(driver.process.pid).children(recursive=True), driver.process):
            process.send_signal(signal.SIGTERM)
        assert driver.process.wait(timeout=PATIENCE_S) == 75, driver.output
    finally:
        driver.process.kill()
    assert process_of(again) is None
    newest = max(list_checkpoints(run.checkpoints), key=step_of)
    assert is_committed(newest)
    assert f"stopped at step {step_of(newest)}" in driver.output
    assert "Traceback" not in driver.log.read_text()
    assert state_of(run).name == "preempted"


@pytest.fixture
def nodes(forked_python: None) -> Iterator[Cluster]:
    """A cluster with room for one worker."""
    cluster = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
    try:
        yield cluster
    finally:
        cluster.shutdown()


def started_on(run: RunDirectory, workers: int, starts: int) -> dict[str, Any] | None:
    """The event of the latest start, if it is the `starts`-th and has so many workers that made some updates."""
    found = run.events(Event.STARTED)
    if len(found) < starts or found[-1]["world_size"] != workers:
        return None
    steps = [entry["step"] for entry in read_metrics(run)]
    return found[-1] if steps and steps[-1] > found[-1]["step"] + 3 else None


def test_run_grows_with_its_cluster_and_leaves_a_drained_node_before_its_deadline(
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
    driver = Driver(run, tmp_path / "driver.log")
    try:
        driver.wait_for(lambda: started_on(run, 1, 1))
        added = nodes.add_node(wait=True, **NODE)
        grown = driver.wait_for(lambda: started_on(run, 2, 2))
        ray = str(Path(sys.executable).with_name("ray"))
        drain = [ray, "drain-node", "--address", nodes.address, "--node-id", added.node_id]
        drain += ["--reason", "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", "spot"]
        drain += ["--deadline-remaining-seconds", str(PATIENCE_S)]
        subprocess.run(drain, env=driver.environment, check=True, capture_output=True)
        shrunk = driver.wait_for(lambda: started_on(run, 1, 3))
        driver.process.send_signal(signal.SIGTERM)
        assert driver.process.wait(timeout=PATIENCE_S) == 75, driver.output
    finally:
        driver.process.kill()
    saved = run.events(Event.PREEMPTED)
    assert [grown["step"], shrunk["step"]] == [event["step"] for event in saved[:2]]
    assert "SIGTERM" in saved[2]["reason"]
    first, second = run.events(Event.MOVED)
    assert first["reason"] == "from 1 to 2 workers"
    assert second["reason"].endswith("is drained")
    steps = [entry["step"] for entry in read_metrics(run)]
    assert steps == list(range(1, saved[2]["step"] + 1))
    assert run.events(Event.WORKERS_LOST) == []
