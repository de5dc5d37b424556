"""The most memory that a task of each stage holds, for a corpus and for one four times as large."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from cluster.artefacts.shard_records import summarize_log
from data_prep.layout import WORK
from tests.benchmarks.corpus import write_json_lines

NUM_BYTES = int(os.environ.get("CLOZE_BENCHMARK_BYTES", 64_000_000))
GROWTH = 4
NUM_PROCESSES = 2


def run() -> Iterator[str]:
    """A line per stage and step of a preparation with everything switched on."""
    from cluster.runtime import ray_runtime

    peaks = []
    for num_bytes in (NUM_BYTES, GROWTH * NUM_BYTES):
        # New worker processes for each, so that neither begins with what the other left in memory.
        with tempfile.TemporaryDirectory() as scratch, ray_runtime("local", num_cpus=NUM_PROCESSES):
            peaks.append(_peaks(Path(scratch), num_bytes))
    small, large = peaks
    for stage in sorted(small.keys() & large.keys()):
        yield (
            f"{stage}: {small[stage] / 1e6:,.0f} MB at {NUM_BYTES / 1e6:.0f} MB of text,"
            f" {large[stage] / 1e6:,.0f} MB at {GROWTH} times as much, ratio {large[stage] / small[stage]:.2f}"
        )


def _peaks(scratch: Path, num_bytes: int) -> dict[str, int]:
    from data_prep.config import PreparationConfig
    from data_prep.job import prepare

    write_json_lines(scratch / "text", num_bytes)
    config = PreparationConfig.model_validate(
        {
            "name": "benchmark",
            "out": str(scratch / "out"),
            "sources": [{"kind": "json_lines", "name": "text", "paths": [f"{scratch}/text/*"]}],
            "filters": [{"kind": "unicode"}, {"kind": "gopher_repetition"}],
            "dedup": "full",
            "tokenizer": {"vocab_size": 8192, "train_bytes": 8_000_000},
            "shard_bytes": 8 << 20,
        }
    )
    prepare(config)
    directories = [path for path in sorted(config.out.iterdir()) if path.is_dir() and path.name != WORK]
    directories += sorted((config.out / WORK).iterdir())
    found = {path.name: summarize_log(path).get("peak_rss_bytes", 0) for path in directories}
    return {name: peak for name, peak in found.items() if peak}
