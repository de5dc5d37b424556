"""Driver seconds per shard of a job of many tiny shards: made, confirmed, and resumed with one in a hundred missing; on
this machine as one node, and as many small ones.

Its peer is a loop over bare Ray tasks that write the same files, as many at a time: without hashes, records, syncs, a
manifest and the check of everything on the next call. Seconds are the driver's processor seconds, because thousands of
tiny tasks leave a small machine's own time to Ray's processes.
"""

from __future__ import annotations

import os
import random
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

NUM_SHARDS = int(os.environ.get("CLOZE_BENCHMARK_SHARDS", 20_000))
NUM_NODES = 16


@dataclass(frozen=True, slots=True)
class ControlPlane:
    """The driver's cost of one job, in processor seconds."""

    num_nodes: int
    num_shards: int
    made_s: float
    alone_s: float
    """Shards of unknown size, which have tasks of their own; a tenth of them was made."""
    bare_s: float
    """The same number of bare Ray tasks."""
    confirmed_s: float
    """The finished artefact verified by the same call."""
    resumed_s: float
    """The same call with one shard in a hundred gone."""
    peak_memory_bytes: int

    def __str__(self) -> str:
        each = {
            "made": self.made_s,
            "made in tasks of their own": self.alone_s,
            "bare Ray tasks": self.bare_s,
            "confirmed": self.confirmed_s,
            "resumed at 99%": self.resumed_s,
        }
        told = ", ".join(f"{name} {1000 * seconds / self.num_shards:.2f}" for name, seconds in each.items())
        return (
            f"{self.num_shards:,} tiny shards, nodes: {self.num_nodes}, driver's milliseconds of processor per shard:"
            f" {told}; {self.peak_memory_bytes / 2**20:,.0f} MiB at most"
        )


def run() -> Iterator[ControlPlane]:
    """A job on one node, and a tenth of it on many."""
    from cluster.runtime import ray_runtime

    with ray_runtime("local"):
        yield _measure(1, NUM_SHARDS)
    with _many_nodes(NUM_NODES) as address, ray_runtime(address):
        yield _measure(NUM_NODES, NUM_SHARDS // 10)


def _measure(num_nodes: int, num_shards: int) -> ControlPlane:
    from cluster.runtime import tasks_in_flight

    with tempfile.TemporaryDirectory() as scratch:
        artefact, bare = Path(scratch) / "artefact", Path(scratch) / "bare"
        bare.mkdir()
        _bare_tasks(bare, 100, tasks_in_flight())
        made_s = _driver_seconds(lambda: _build(artefact, num_shards))
        few = num_shards // 10
        alone_s = num_shards / few * _driver_seconds(lambda: _build(artefact.with_name("alone"), few, 0))
        confirmed_s = _driver_seconds(lambda: _build(artefact, num_shards))
        for number in random.Random(1).sample(range(num_shards), num_shards // 100):
            (artefact / _name(number)).unlink()
        resumed_s = _driver_seconds(lambda: _build(artefact, num_shards))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        bare_s = _driver_seconds(lambda: _bare_tasks(bare, num_shards, tasks_in_flight()))
    return ControlPlane(num_nodes, num_shards, made_s, alone_s, bare_s, confirmed_s, resumed_s, peak)


@contextmanager
def _many_nodes(count: int) -> Iterator[str]:
    """The address of a cluster of so many nodes with one CPU each, on this machine, beside a head without any."""
    from ray.cluster_utils import Cluster

    small = {"object_store_memory": 78 << 20}
    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False, **small}
    )
    try:
        for _ in range(count):
            cluster.add_node(num_cpus=1, wait=False, **small)
        cluster.wait_for_nodes(timeout=600)
        yield cluster.address
    finally:
        cluster.shutdown()


def _build(directory: Path, num_shards: int, size_bytes: int = 8) -> None:
    from cluster.sharded_artefact import build_sharded_artefact
    from cluster.shards import Shard

    build_sharded_artefact(
        directory,
        "documents",
        shards=[
            Shard(_name(number), partial(partial, _write, number), f"{number:032x}", size_bytes)
            for number in range(num_shards)
        ],
        config={},
        inputs=[],
    )


def _write(number: int, path: Path):
    from cluster.shards import ShardResult

    path.write_bytes(b"%d" % number)
    return ShardResult(rows=1)


def _bare_tasks(directory: Path, count: int, window: int) -> None:
    import ray

    def write(number: int) -> None:
        (directory / _name(number)).write_bytes(b"%d" % number)

    remote = ray.remote(num_cpus=1)(write)
    running = []
    for number in range(count):
        if len(running) == window:
            (ready, *_), running = ray.wait(running)
            ray.get(ready)
        running.append(remote.remote(number))
    ray.get(running)


def _name(number: int) -> str:
    return f"data-{number:06d}.txt"


def _driver_seconds(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started
