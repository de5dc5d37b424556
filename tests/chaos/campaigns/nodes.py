"""Nodes of a Ray cluster: one is lost and another joins; the head is lost, and all that ran under it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.chaos.scene import WORKERS, Scene

_NODE: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 100 * 1024**2}


class Nodes:
    """A cluster with a node for each worker, the head among them."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        self._cluster = Cluster(initialize_head=True, head_node_args={**_NODE, "include_dashboard": False})
        for _ in range(WORKERS - 1):
            self.join()

    @property
    def address(self) -> str:
        """Where drivers reach it."""
        assert self._cluster.address is not None
        return self._cluster.address

    def join(self) -> None:
        """A new node joins."""
        self._cluster.add_node(wait=True, **_NODE)

    def lose(self) -> None:
        """SIGKILL for the processes of a node that is not the head."""
        self._cluster.remove_node(next(iter(self._cluster.worker_nodes)), allow_graceful=False)

    def lose_head(self) -> None:
        """SIGKILL for the processes of the head."""
        head = self._cluster.head_node
        assert head is not None
        head.kill_all_processes(check_alive=False, allow_graceful=False, wait=True)

    def close(self) -> None:
        """Shut down what is left."""
        self._cluster.shutdown()


@contextmanager
def cluster_of_nodes(directory: Path) -> Iterator[list[Nodes]]:
    """A list with a cluster; all that are in it at the end are shut down."""
    clusters = [Nodes()]
    try:
        yield clusters
    finally:
        for cluster in clusters:
            cluster.close()


def nodes(scene: Scene) -> None:
    """The group waits for a new node after it lost one, and begins again on a new cluster."""
    clusters: list[Nodes] = scene.around
    scene.drive(f"cluster.address={clusters[0].address}")
    scene.until_step(scene.a_step(20, 70))
    row = scene.strike("node", "SIGKILL of a node's processes; another node joins 5 s later")
    clusters[0].lose()
    time.sleep(5)
    clusters[0].join()
    scene.until_trained_again()
    scene.until_step(scene.a_step(90, 120))
    row = scene.strike("head", "SIGKILL of the processes of Ray's head node")
    clusters[0].lose_head()
    scene.until_ended(row)
    clusters.pop().close()
    clusters.append(Nodes())
    scene.drive(f"cluster.address={clusters[0].address}")
    row.operator = "a new cluster; the same command with its address"
    scene.until_trained_again()
    scene.finish()
