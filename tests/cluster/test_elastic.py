"""The size of a group follows the free resources of nodes that are not drained."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import SimpleNamespace

import pytest
import ray

from cluster import group
from cluster.group import GroupSize, choose_workers, free_workers, largest_fitting, reason_to_move

FIXED = GroupSize((4,), cpus_per_worker=2, gpus_per_worker=0)
ELASTIC = GroupSize((4, 2, 1), cpus_per_worker=2, gpus_per_worker=0)
ON_GPUS = GroupSize((4, 2, 1), cpus_per_worker=2, gpus_per_worker=1)

Nodes = Mapping[str, Mapping[str, float]]


def cluster_of(monkeypatch: pytest.MonkeyPatch, free: Nodes, *drained: str) -> None:
    monkeypatch.setattr(group, "free_resources_by_node", lambda: free)
    monkeypatch.setattr(group, "draining_nodes", lambda: dict.fromkeys(drained, 0))


@pytest.mark.parametrize(
    ("size", "free", "drained", "expected"),
    [
        (FIXED, {"a": {"CPU": 8.0}}, (), 4),
        # A worker takes all its processors from one node.
        (FIXED, {"a": {"CPU": 3.0}, "b": {"CPU": 3.9}}, (), 2),
        (FIXED, {"a": {"CPU": 8.0}, "b": {"CPU": 4.0}}, ("a",), 2),
        (FIXED, {"a": {"memory": 1e9}, "b": {}}, (), 0),
        (ON_GPUS, {"a": {"CPU": 64.0, "GPU": 2.0}, "b": {"CPU": 2.0, "GPU": 8.0}, "c": {"CPU": 64.0}}, (), 3),
        (FIXED, {}, (), 0),
    ],
)
def test_workers_fit_into_single_nodes_that_stay(monkeypatch, size, free, drained, expected):
    cluster_of(monkeypatch, free, *drained)
    assert free_workers(size) == expected


@pytest.mark.parametrize(("room", "expected"), [(9, 4), (4, 4), (3, 2), (1, 1), (0, None)])
def test_largest_allowed_number_that_fits_is_taken(room: int, expected: int | None):
    assert largest_fitting(ELASTIC, room) == expected


@pytest.mark.parametrize(
    ("size", "running", "free", "drained", "grows", "expected"),
    [
        (FIXED, {"a": 4}, {"b": {"CPU": 64.0}}, (), True, None),
        (FIXED, {"a": 2, "b": 2}, {}, ("b", "elsewhere"), False, "move: 10.0.0.2 is drained"),
        (ELASTIC, {"a": 1, "b": 1}, {}, ("a", "b"), False, "move: 10.0.0.1, 10.0.0.2 is drained"),
        (ELASTIC, {"gone": 1}, {}, ("gone",), True, "move: gone is drained"),
        (ELASTIC, {"a": 1}, {"a": {"CPU": 2.0}}, ("elsewhere",), True, "move: from 1 to 2 workers"),
        (ELASTIC, {"a": 1}, {"a": {"CPU": 2.0}}, (), False, None),
        (ELASTIC, {"a": 2}, {"a": {"CPU": 2.0}}, (), True, None),
        (ELASTIC, {"a": 2}, {"b": {"CPU": 4.0}}, (), True, "move: from 2 to 4 workers"),
        (ELASTIC, {"a": 2}, {"b": {"CPU": 4.0}}, ("b",), True, None),
        (ELASTIC, {"a": 4}, {"b": {"CPU": 64.0}}, (), True, None),
    ],
)
def test_group_moves_off_drained_nodes_and_to_more_workers_only(
    monkeypatch, size, running, free, drained, grows, expected
):
    cluster_of(monkeypatch, free, *drained)
    addresses = {"a": "10.0.0.1", "b": "10.0.0.2"}
    nodes = [{"NodeID": node, "NodeManagerAddress": address} for node, address in addresses.items()]
    monkeypatch.setattr(ray, "nodes", lambda: nodes)
    assert reason_to_move(size, running, grows=grows) == expected


def test_a_group_of_a_fixed_size_is_left_to_ray(monkeypatch):
    cluster_of(monkeypatch, {})
    assert choose_workers(FIXED) == 4


def test_start_waits_for_room_that_no_longer_changes(monkeypatch, capsys):
    free = [0.0, 0.0, 2.0, 4.0, 6.0, 6.0, 64.0]
    clock = SimpleNamespace(sleep=lambda seconds: free.pop(0), monotonic=time.monotonic)
    monkeypatch.setattr(group, "time", clock)
    monkeypatch.setattr(group, "free_resources_by_node", lambda: {"a": {"CPU": free[0]}})
    monkeypatch.setattr(group, "draining_nodes", dict)
    assert choose_workers(ELASTIC) == 2
    assert free == [6.0, 64.0]
    assert "waiting for room" in capsys.readouterr().err
