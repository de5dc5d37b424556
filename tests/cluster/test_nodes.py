"""Checks of every node of a real cluster of three nodes on this machine."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray

from cluster.checks import nodes as node_checks
from cluster.checks.machine import Check, Places
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


def test_every_node_is_checked_and_nothing_is_left_behind(address, tmp_path):
    reports = check_nodes(address, places(tmp_path / "runs", "http://127.0.0.1:1"), num_nodes=3)
    assert len({report.node for report in reports}) == len(reports) == 3
    own = {"memory", "shared memory", "open files", "runs disk", "gpus", "durable writes"}
    for report in reports:
        checks = by_name(report)
        assert len(checks) == len(report.checks)
        for name, told in (("versions", "deepspeed"), ("clock", ""), ("shared storage", "locks")):
            assert checks[name].status == "ok", checks[name]
            assert told in checks[name].found
        assert checks["all-reduce"].status in ("ok", "warn"), checks["all-reduce"]
        assert "gloo" in checks["all-reduce"].found
        assert "GPUs are busy" in checks["all-reduce"].found
        # Every node looks for the tracking store by itself.
        assert checks["tracking"].status == report.status == "fail"
        assert checks.keys() >= own
    assert list(tmp_path.iterdir()) == []


def test_a_storage_that_is_not_shared_is_found_and_nodes_that_do_not_join_are_counted(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
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
    monkeypatch.setattr(node_checks, "VISIBLE_S", 0.5)
    monkeypatch.setattr(node_checks, "JOIN_S", 0.1)
    monkeypatch.setattr(node_checks, "check_exchanges", lambda nodes: None)
    missing, *reports = check_nodes(address, places(tmp_path), num_nodes=4)
    assert missing.checks[0].found == "3 of 4 joined"
    assert len(reports) == 3
    for report in reports:
        check = by_name(report)["shared storage"]
        assert check.status == "fail"
        assert "is not seen here" in check.found
        assert str(tmp_path) in check.remedy


def test_nodes_with_other_software_a_wrong_clock_or_no_answer_are_named_and_do_not_end_the_checks(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    # Of equally many nodes with a version, the first ones are right.
    broken, _, odd = sorted(each["NodeID"] for each in ray.nodes() if each["Alive"])

    class Odd(NodeProbe):
        def __init__(self) -> None:
            import ray

            self.node = ray.get_runtime_context().get_node_id()
            if self.node == broken:
                raise ModuleNotFoundError("No module named 'cluster'")
            super().__init__()

        def facts(self, places: Places):
            versions, checks = super().facts(places)
            return versions | ({"torch": "1.0"} if self.node == odd else {}), checks

        def now_s(self) -> float:
            return super().now_s() - (100 if self.node == odd else 0)

    monkeypatch.setattr(node_checks, "NodeProbe", Odd)
    monkeypatch.setattr(node_checks, "check_exchanges", lambda nodes: None)
    reports = {report.node[-7:-1]: by_name(report) for report in check_nodes(address, places(tmp_path))}
    wrong, silent = reports.pop(odd[:6]), reports.pop(broken[:6])
    assert wrong["versions"].status == wrong["clock"].status == "fail"
    assert "torch is 1.0, elsewhere" in wrong["versions"].found
    assert "-100" in wrong["clock"].found
    assert list(silent) == ["answers"]
    assert "No module named" in silent["answers"].found
    (other,) = reports.values()
    assert {other[name].status for name in ("versions", "clock", "shared storage")} == {"ok"}
