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
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from tests.benchmarks.harness import processor_seconds

NUM_SHARDS = int(os.environ.get("CLOZE_BENCHMARK_SHARDS", 20_000))
NUM_NODES = 16


def run() -> Iterator[str]:
    """A job on one node, and a tenth of it on many."""
    from cluster.runtime import ray_runtime

    with ray_runtime("local"):
        yield _measure(1, NUM_SHARDS)
    with _many_nodes(NUM_NODES) as address, ray_runtime(address):
        yield _measure(NUM_NODES, NUM_SHARDS // 10)


def _measure(num_nodes: int, num_shards: int) -> str:
    from cluster.runtime import tasks_in_flight

    with tempfile.TemporaryDirectory() as scratch:
        artefact, bare = Path(scratch) / "artefact", Path(scratch) / "bare"
        bare.mkdir()
        _bare_tasks(bare, 100, tasks_in_flight())
        few, seconds = num_shards // 10, {}
        seconds["made"] = processor_seconds(lambda: _build(artefact, num_shards))
        # Shards of unknown size have tasks of their own; a tenth of them is made.
        alone = processor_seconds(lambda: _build(artefact.with_name("alone"), few, 0))
        seconds["made in tasks of their own"] = num_shards / few * alone
        seconds["confirmed"] = processor_seconds(lambda: _build(artefact, num_shards))
        for number in random.Random(1).sample(range(num_shards), num_shards // 100):
            (artefact / _name(number)).unlink()
        seconds["resumed at 99%"] = processor_seconds(lambda: _build(artefact, num_shards))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        seconds["bare Ray tasks"] = processor_seconds(
            lambda: _bare_tasks(bare, num_shards, tasks_in_flight())
        )
    told = ", ".join(f"{name} {1000 * each / num_shards:.2f}" for name, each in seconds.items())
    return (
        f"{num_shards:,} tiny shards, nodes: {num_nodes}, driver's milliseconds of processor per shard: {told};"
        f" {peak / 2**20:,.0f} MiB at most"
    )


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
    from cluster.shards import Shard, build_sharded_artefact

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
