"""An elastic run on a cluster of nodes that come and go grows, and leaves a drained node, without losing an update."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ray.cluster_utils import Cluster

from pipeline.run.directory import RunDirectory
from pipeline.run.events import Event
from pipeline.run.log.lines import read_metrics
from tests.pipeline.process_group import PATIENCE_S
from tests.pipeline.ranks import Driver, make_run

NODE: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 100 * 1024**2}


@pytest.fixture
def nodes() -> Iterator[Cluster]:
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
        "steps=1000000",
        "cluster.workers=2",
        "cluster.min_workers=1",
        "cluster.resize_interval_s=1",
        f"cluster.address={nodes.address}",
        "checkpoint.every_steps=1000000",
        "evaluation.every_steps=1000000",
    )
    run = make_run(tmp_path, store, "elastic", *settings)
    driver = Driver(run, tmp_path / "driver.log")
    try:
        driver.wait_for(lambda: started_on(run, 1, 1))
        added = nodes.add_node(wait=True, **NODE)
        grown = driver.wait_for(lambda: started_on(run, 2, 2))
        ray = str(Path(sys.executable).with_name("ray"))
        drain = [ray, "drain-node", "--address", nodes.address, "--node-id", added.node_id]
        why = [
            "--reason",
            "DRAIN_NODE_REASON_PREEMPTION",
            "--reason-message",
            "spot",
            "--deadline-remaining-seconds",
        ]
        subprocess.run(
            [*drain, *why, str(PATIENCE_S)], env=driver.environment, check=True, capture_output=True
        )
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
