"""The size of a group: how many workers it starts with, what each gets, and when it moves, because a cluster grows,
shrinks, or drains nodes.

A step is a fixed list of micro-batches, so only some numbers of workers can share it out. A group that is to move saves
first, like one that is stopped.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from cluster.artefacts.errors import ConfigError
from cluster.artefacts.owner import repeated
from cluster.ray_internals import draining_nodes, free_resources_by_node
from cluster.stopping import StopFile

MOVE = "move: "
"""Prefix of the reasons of stop requests that make the group start again by itself."""
_POLL_S = 1.0
_REPORT_EVERY_S = 60.0


@dataclass(frozen=True, slots=True)
class GroupSize:
    """Number of workers of a training group, and the resources of each."""

    workers: int
    cpus_per_worker: int
    gpus_per_worker: int
    smaller: tuple[int, ...] = ()
    """Smaller numbers of workers that will do, where the cluster has no room for all."""

    @property
    def choices(self) -> tuple[int, ...]:
        """All numbers of workers that will do."""
        return (self.workers, *self.smaller)


def worker_environment(size: GroupSize) -> dict[str, str]:
    """Environment of every worker: threads wait passively, because spinning starves the machine's other workers."""
    threads = str(size.cpus_per_worker)
    environment = {
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "OMP_WAIT_POLICY": "PASSIVE",
        "TOKENIZERS_PARALLELISM": "false",
    }
    return environment if size.gpus_per_worker else {**environment, "DS_ACCELERATOR": "cpu"}


def require_resources(size: GroupSize) -> None:
    """Refuse a group that is too large for the connected cluster: Ray would wait for it without end. A group that may
    be smaller waits for room, because the cluster may grow.

    Raises:
        ConfigError: names the resources that are needed, and what the cluster has.
    """
    import ray

    if size.smaller:
        return
    have = ray.cluster_resources()
    need = {"CPU": size.workers * size.cpus_per_worker, "GPU": size.workers * size.gpus_per_worker}
    short = [
        f"{count} {kind}s, the cluster has {have.get(kind, 0):g}"
        for kind, count in need.items()
        if count > have.get(kind, 0)
    ]
    if short:
        raise ConfigError(
            f"{size.workers} workers need {'; '.join(short)}.",
            next_step="lower cluster.workers or cluster.cpus_per_worker, or add nodes to the cluster",
        )


def choose_workers(size: GroupSize) -> int:
    """The largest number of workers of `size` that the cluster has room for now; waits until it has room for one of
    them. A group of a fixed size is left to Ray, which waits for its resources by itself."""
    if not size.smaller:
        return size.workers
    reported_s, room = float("-inf"), free_workers(size)
    while True:
        time.sleep(_POLL_S)
        # The resources of processes that have just ended come back one by one.
        before, room = room, free_workers(size)
        found = largest_fitting(size, room)
        if found is not None and before == room:
            return found
        if found is None and time.monotonic() - reported_s >= _REPORT_EVERY_S:
            reported_s = time.monotonic()
            print(
                f"waiting for room for {min(size.choices)} workers; there is room for {room}", file=sys.stderr
            )


def largest_fitting(size: GroupSize, room: int) -> int | None:
    """The largest allowed number of workers that fits; None if none does."""
    return max((count for count in size.choices if count <= room), default=None)


def free_workers(size: GroupSize) -> int:
    """Workers that the free resources of all nodes but drained ones can hold."""
    drained = draining_nodes()
    needed = {"CPU": size.cpus_per_worker, "GPU": size.gpus_per_worker}
    return sum(
        min(int(resources.get(name, 0) // count) for name, count in needed.items() if count)
        for node, resources in free_resources_by_node().items()
        if node not in drained
    )


def reason_to_move(size: GroupSize, running: Mapping[str, int], *, grows: bool) -> str | None:
    """Why the running group should save and start again, if it should.

    Args:
        running: by node, the workers of the group.
        grows: whether room for more workers is a reason.
    """
    import ray

    drained = draining_nodes()
    if leaving := sorted(node for node in running if node in drained):
        addresses = {each["NodeID"]: each["NodeManagerAddress"] for each in ray.nodes()}
        return f"{MOVE}{', '.join(addresses.get(node, node) for node in leaving)} is drained"
    workers = sum(running.values())
    if not (grows and size.smaller):
        return None
    fitting = largest_fitting(size, workers + free_workers(size))
    return f"{MOVE}from {workers} to {fitting} workers" if fitting is not None and fitting > workers else None


@contextmanager
def watching_cluster(
    size: GroupSize, running: Mapping[str, int], stop: StopFile, *, interval_s: float
) -> Iterator[None]:
    """While the block runs, ask a group to save and move when a node of it is drained, or when it can grow.

    Args:
        running: by node, the workers of the group.
        interval_s: least seconds between the start of a group, or the last look for room, and the next one.
    """
    next_look_s = time.monotonic() + interval_s

    def look() -> None:
        nonlocal next_look_s
        grows = time.monotonic() >= next_look_s
        if grows:
            next_look_s = time.monotonic() + interval_s
        if (reason := reason_to_move(size, running, grows=grows)) and not stop.requested():
            stop.request(reason)

    with repeated(look, _POLL_S, name="cluster-watch"):
        yield
