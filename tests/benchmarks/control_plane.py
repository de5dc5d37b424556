"""Driver seconds per shard of a job of many tiny shards: made, also in tasks of their own as large shards are,
confirmed, and resumed with one in a hundred missing.

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
from functools import partial
from pathlib import Path

from cluster.shards import Shard, ShardResult, build_sharded_artefact
from tests.benchmarks.harness import processor_seconds

NUM_SHARDS = int(os.environ.get("CLOZE_BENCHMARK_SHARDS", 20_000))


def run() -> Iterator[str]:
    """One line."""
    from cluster.runtime import ray_runtime, tasks_in_flight

    with ray_runtime("local"), tempfile.TemporaryDirectory() as scratch:
        artefact, bare = Path(scratch) / "artefact", Path(scratch) / "bare"
        bare.mkdir()
        _bare_tasks(bare, 100, tasks_in_flight())
        seconds = {"made": processor_seconds(lambda: _build(artefact))}
        # Shards of unknown size have tasks of their own; a tenth of them is made.
        alone = processor_seconds(lambda: _build(artefact.with_name("alone"), NUM_SHARDS // 10, size_bytes=0))
        seconds["made in tasks of their own"] = 10 * alone
        seconds["confirmed"] = processor_seconds(lambda: _build(artefact))
        for number in random.Random(1).sample(range(NUM_SHARDS), NUM_SHARDS // 100):
            (artefact / _name(number)).unlink()
        seconds["resumed at 99%"] = processor_seconds(lambda: _build(artefact))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        seconds["bare Ray tasks"] = processor_seconds(
            lambda: _bare_tasks(bare, NUM_SHARDS, tasks_in_flight())
        )
    told = ", ".join(f"{name} {1000 * each / NUM_SHARDS:.2f}" for name, each in seconds.items())
    yield (
        f"{NUM_SHARDS:,} tiny shards, driver's milliseconds of processor per shard: {told};"
        f" {peak / 2**20:,.0f} MiB at most"
    )


def _build(directory: Path, num_shards: int = NUM_SHARDS, size_bytes: int = 8) -> None:
    shards = [
        Shard(_name(number), partial(partial, _write, number), f"{number:032x}", size_bytes)
        for number in range(num_shards)
    ]
    build_sharded_artefact(directory, "documents", shards=shards, config={}, inputs=[])


def _write(number: int, path: Path) -> ShardResult:
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
