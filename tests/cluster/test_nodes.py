"""Checks of every node of a real cluster of three nodes on this machine."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.checks import Places
from cluster.checks import nodes as node_checks
from cluster.checks.machine import Check
from cluster.checks.nodes import NodeReport, check_nodes
from cluster.checks.probes import NodeProbe
from cluster.runtime import ray_runtime


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A head that runs no tasks, and two more nodes, whose GPUs (by name only) are busy."""
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    for _ in range(2):
        cluster.add_node(num_cpus=1, num_gpus=1)
    cluster.wait_for_nodes()
    # Connected once: every check would connect, and start its workers, anew.
    with ray_runtime(cluster.address):
        # A placement group needs no process.
        ray.get(ray.util.placement_group([{"GPU": 1}] * 2).ready())
        yield cluster.address
    cluster.shutdown()


def places(runs: Path, tracking_uri: str | None = None) -> Places:
    return Places(runs_dir=runs, data_dir=None, ray_address=None, tracking_uri=tracking_uri)


def by_name(report: NodeReport) -> dict[str, Check]:
    return {check.name: check for check in report.checks}


def test_every_node_is_checked_and_nothing_is_left_behind(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(node_checks, "_FREE_GPU_S", 1.0)
    reports = check_nodes(address, places(tmp_path / "runs", "http://127.0.0.1:1"), num_nodes=3)
    assert len({report.node for report in reports}) == len(reports) == 3
    for report in reports:
        checks = by_name(report)
        assert len(checks) == len(report.checks)
        assert checks["versions"].status == "ok", checks["versions"]
        assert "deepspeed" in checks["versions"].found
        assert checks["clock"].status == "ok"
        assert checks["shared storage"].status == "ok", checks["shared storage"]
        assert "locks" in checks["shared storage"].found
        assert checks["all-reduce"].status in ("ok", "warn"), checks["all-reduce"]
        assert "gloo" in checks["all-reduce"].found
        assert "GPUs are busy" in checks["all-reduce"].found
        # Every node looks for the tracking store by itself.
        assert checks["tracking"].status == report.status == "fail"
        assert checks.keys() >= {
            "memory",
            "shared memory",
            "open files",
            "runs disk",
            "gpus",
            "durable writes",
        }
    assert list(tmp_path.iterdir()) == []


def test_a_storage_that_is_not_shared_is_found(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Two directories in the place of one, as on machines without a common mount."""

    class Apart(NodeProbe):
        def commit(self, scratch: Path, name: str) -> None:
            elsewhere = scratch.parent / "another-disk"
            elsewhere.mkdir(exist_ok=True)
            super().commit(elsewhere, name)

        def remove(self, scratch: Path) -> None:
            shutil.rmtree(scratch.parent / "another-disk")
            super().remove(scratch)

    monkeypatch.setattr(node_checks, "NodeProbe", Apart)
    monkeypatch.setattr(node_checks, "_VISIBLE_S", 0.5)
    monkeypatch.setattr(node_checks, "_check_exchanges", lambda nodes: None)
    for report in check_nodes(address, places(tmp_path)):
        check = by_name(report)["shared storage"]
        assert check.status == "fail"
        assert "is not seen here" in check.found
        assert str(tmp_path) in check.remedy


def test_a_node_with_other_software_and_a_wrong_clock_is_named(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    head = sorted(node_checks._alive(), key=lambda node: node["Resources"].get("CPU", 0))[0]["NodeID"]

    class Older(NodeProbe):
        def facts(self, places: Places):
            import ray

            facts = super().facts(places)
            if ray.get_runtime_context().get_node_id() == head:
                facts.versions["torch"] = "1.0"
            return facts

        def now_s(self) -> float:
            import ray

            return super().now_s() - (100 if ray.get_runtime_context().get_node_id() == head else 0)

    monkeypatch.setattr(node_checks, "NodeProbe", Older)
    monkeypatch.setattr(node_checks, "_check_exchanges", lambda nodes: None)
    reports = {report.node[-7:-1]: by_name(report) for report in check_nodes(address, places(tmp_path))}
    wrong = reports.pop(head[:6])
    assert wrong["versions"].status == wrong["clock"].status == "fail"
    assert "torch is 1.0, elsewhere" in wrong["versions"].found
    assert "-100" in wrong["clock"].found
    assert {checks[name].status for checks in reports.values() for name in ("versions", "clock")} == {"ok"}


def test_a_node_that_does_not_answer_does_not_end_the_checks(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    head = sorted(node_checks._alive(), key=lambda node: node["Resources"].get("CPU", 0))[0]["NodeID"]

    class Broken(NodeProbe):
        def __init__(self) -> None:
            import ray

            if ray.get_runtime_context().get_node_id() == head:
                raise ModuleNotFoundError("No module named 'cluster'")
            super().__init__()

    monkeypatch.setattr(node_checks, "NodeProbe", Broken)
    monkeypatch.setattr(node_checks, "_check_exchanges", lambda nodes: None)
    reports = {report.node[-7:-1]: report for report in check_nodes(address, places(tmp_path))}
    broken = reports.pop(head[:6])
    assert [check.name for check in broken.checks] == ["answers"]
    assert "No module named" in broken.checks[0].found
    assert all(by_name(report)["shared storage"].status == "ok" for report in reports.values())


def test_nodes_that_do_not_join_are_counted(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(node_checks, "_ANSWER_S", 0.1)
    (report,) = node_checks._missing(4)
    assert report.checks[0].found == "3 of 4 joined"


def test_the_verb_tells_about_nodes_and_ends_with_1_for_a_missing_store(address: str, tmp_path: Path):
    environment = os.environ | {"MLFLOW_TRACKING_URI": "http://127.0.0.1:1", "COLUMNS": "200"}
    command = [
        sys.executable,
        "-m",
        "pipeline.cli",
        "doctor",
        "--address",
        address,
        "--json",
        "--runs-dir",
        str(tmp_path),
    ]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    answer = json.loads(done.stdout)
    assert done.returncode == 1, done.stderr
    assert answer["ok"] is False
    assert len(answer["nodes"]) == 3
    assert {
        check["status"] for node in answer["nodes"] for check in node["checks"] if check["name"] == "tracking"
    } == {"fail"}
