"""Driver seconds per shard of a job of many tiny shards: made, confirmed, and resumed with one in a hundred missing.

Its peer is a loop over bare Ray tasks that write the same files, as many at a time: without hashes, records, syncs, a
manifest and the check of everything on the next call. Seconds are the driver's processor seconds, because thousands of
tiny tasks leave a small machine's own time to Ray's processes.
"""

from __future__ import annotations

import random
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

NUM_SHARDS = 20_000
NUM_MISSING = NUM_SHARDS // 100


@dataclass(frozen=True, slots=True)
class ControlPlane:
    """The driver's cost of one job, in processor seconds."""

    num_shards: int
    made_s: float
    bare_s: float
    """The same number of bare Ray tasks."""
    confirmed_s: float
    """The finished artefact verified by the same call."""
    resumed_s: float
    """The same call with NUM_MISSING shards gone."""
    peak_memory_bytes: int

    def __str__(self) -> str:
        each = {
            "made": self.made_s,
            "bare Ray tasks": self.bare_s,
            "confirmed": self.confirmed_s,
            "resumed at 99%": self.resumed_s,
        }
        told = ", ".join(f"{name} {1000 * seconds / self.num_shards:.2f}" for name, seconds in each.items())
        return (
            f"{self.num_shards:,} tiny shards, driver's milliseconds of processor per shard: {told};"
            f" {self.peak_memory_bytes / 2**20:,.0f} MiB at most"
        )


def run() -> Iterator[ControlPlane]:
    """One job on a local cluster."""
    from cluster.runtime import ray_runtime, tasks_in_flight

    with tempfile.TemporaryDirectory() as scratch, ray_runtime("local"):
        artefact, bare = Path(scratch) / "artefact", Path(scratch) / "bare"
        bare.mkdir()
        _bare_tasks(bare, 100, tasks_in_flight())
        made_s = _driver_seconds(lambda: _build(artefact))
        confirmed_s = _driver_seconds(lambda: _build(artefact))
        for number in random.Random(1).sample(range(NUM_SHARDS), NUM_MISSING):
            (artefact / _name(number)).unlink()
        resumed_s = _driver_seconds(lambda: _build(artefact))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        bare_s = _driver_seconds(lambda: _bare_tasks(bare, NUM_SHARDS, tasks_in_flight()))
    yield ControlPlane(NUM_SHARDS, made_s, bare_s, confirmed_s, resumed_s, peak)


def _build(directory: Path) -> None:
    from cluster.sharded_artefact import build_sharded_artefact
    from cluster.shards import Shard

    build_sharded_artefact(
        directory,
        "documents",
        function=_write,
        shards=[Shard(_name(number), number, f"{number:032x}", 8) for number in range(NUM_SHARDS)],
        config={},
        inputs=[],
        finish=lambda directory, records: {},
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
