"""How many workers a group starts with, and when it moves: a cluster that grows, shrinks, or drains nodes.

Ray Train's own elastic groups take any number of workers between two limits, and learn of a drained node only when it
is gone, or when the training function asks. Here a step is a fixed list of micro-batches, so only some numbers of
workers can share it out; and a group that is to move saves first, like one that is stopped.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from cluster.artefacts.repeated import repeated
from cluster.group_size import GroupSize
from cluster.ray_internals import draining_nodes, free_resources_by_node

MOVE = "move: "
"""Begins the reasons of stop requests after which the group starts again by itself."""
_POLL_S = 1.0
_TELL_EVERY_S = 60.0


def choose_workers(size: GroupSize, *, poll_s: float = _POLL_S) -> int:
    """The largest number of workers of `size` that the cluster has room for now; waits until it has room for one of
    them. A group of a fixed size is left to Ray, which waits for its resources by itself."""
    if not size.smaller:
        return size.workers
    told_s = float("-inf")
    while (found := largest_fitting(size, free_workers(size))) is None:
        if time.monotonic() - told_s >= _TELL_EVERY_S:
            told_s = time.monotonic()
            least = min(size.choices)
            print(
                f"waiting for room for {least} workers; there is room for {free_workers(size)}",
                file=sys.stderr,
            )
        time.sleep(poll_s)
    return found


def largest_fitting(size: GroupSize, room: int) -> int | None:
    """The largest allowed number of workers that fits; None if none does."""
    return max((count for count in size.choices if count <= room), default=None)


def free_workers(size: GroupSize) -> int:
    """Workers that the free resources of all nodes but drained ones can hold."""
    drained = draining_nodes()
    return sum(
        _workers_in(resources, size)
        for node, resources in free_resources_by_node().items()
        if node not in drained
    )


def workers_by_node() -> dict[str, int]:
    """Workers of this job's running group, by node id."""
    import ray
    from ray.util import placement_group_table

    # An id ends with the id of the job which made the group.
    job = ray.get_runtime_context().get_job_id()
    found: dict[str, int] = {}
    for number, group in placement_group_table().items():
        if number.endswith(job) and group["state"] == "CREATED":
            for node in group["bundles_to_node_id"].values():
                found[node] = found.get(node, 0) + 1
    return found


def reason_to_move(size: GroupSize, *, grows: bool) -> str | None:
    """Why the running group should save and start again, if it should.

    Args:
        grows: whether room for more workers is a reason.
    """
    held, drained = workers_by_node(), draining_nodes()
    if leaving := sorted(node for node in held if node in drained):
        return f"{MOVE}{', '.join(_address(node) for node in leaving)} is drained"
    running = sum(held.values())
    if not (grows and size.smaller and running in size.choices):
        return None
    fitting = largest_fitting(size, running + free_workers(size))
    return f"{MOVE}from {running} to {fitting} workers" if fitting is not None and fitting > running else None


@contextmanager
def watching_cluster(
    size: GroupSize, ask: Callable[[str], None], *, interval_s: float, poll_s: float = _POLL_S
) -> Iterator[None]:
    """While the block runs, ask a group to save and move when a node of it is drained, or when it can grow.

    Args:
        ask: requests a stop, with the reason.
        interval_s: least seconds between the start of a group, or the last look for room, and the next one.
    """
    next_look_s, asked = time.monotonic() + interval_s, False

    def look() -> None:
        nonlocal next_look_s, asked
        grows = time.monotonic() >= next_look_s
        if grows:
            next_look_s = time.monotonic() + interval_s
        reason = reason_to_move(size, grows=grows)
        if reason is not None and not asked:
            ask(reason)
        asked = reason is not None

    with repeated(look, poll_s, name="cluster-watch"):
        yield


def _workers_in(resources: Mapping[str, float], size: GroupSize) -> int:
    """Workers that these resources can hold."""
    needed = {"CPU": size.cpus_per_worker, "GPU": size.gpus_per_worker}
    return min(int(resources.get(name, 0) // count) for name, count in needed.items() if count)


def _address(node: str) -> str:
    import ray

    return next((each["NodeManagerAddress"] for each in ray.nodes() if each["NodeID"] == node), node)
