"""A preparation of very many tiny source files: what its driver takes, step by step, each in a process of its own.

The tasks' own work is not counted: a driver on a cluster has it done by others. Each file is one line of JSON, and they
lie in memory where there is a file system for that: what a disk does with a million of them is another question.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from cluster.artefacts.shard_records import Effort, measure_effort
from data_prep.config import PreparationConfig

NUM_FILES = int(os.environ.get("CLOZE_BENCHMARK_FILES", 100_000))
FILES_PER_SHARD = int(os.environ.get("CLOZE_BENCHMARK_FILES_PER_SHARD", 100))
_FILES_PER_FOLDER = 1000
_LINE = '{"id": "%09d", "text": "This is document %09d, which says what its number is, and is like no other one."}\n'
_IN_MEMORY = Path("/dev/shm")


def run() -> Iterator[str]:
    """Planned, prepared, confirmed, verified, followed back, and the manifest alone."""
    with tempfile.TemporaryDirectory(dir=_IN_MEMORY if _IN_MEMORY.is_dir() else None) as scratch:
        folder = Path(scratch)
        for number in range(NUM_FILES):
            parent = folder / "texts" / f"folder-{number // _FILES_PER_FOLDER:06d}"
            if number % _FILES_PER_FOLDER == 0:
                parent.mkdir(parents=True)
            (parent / f"document-{number:09d}.jsonl").write_text(_LINE % (number, number))
        for what, command in _COMMANDS.items():
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
                effort = process.submit(_measure, command, folder).result()
            yield (
                f"{NUM_FILES:,} source files in {NUM_FILES // FILES_PER_SHARD:,} shards, {what}:"
                f" {effort['seconds']:,.1f} s, {effort['processor_seconds']:,.1f} s of the driver's processor,"
                f" {effort['peak_rss_bytes'] / 2**20:,.0f} MiB"
            )


def _measure(command: Callable[[Path], object], folder: Path) -> Effort:
    import pipeline.commands.data  # noqa: F401  what the command line imports is no part of the step

    with measure_effort() as effort:
        command(folder)
        return effort()


def _plan(folder: Path) -> None:
    from data_prep.plan import plan_preparation

    plan_preparation(_config(folder))


def _prepare(folder: Path) -> None:
    from cluster.runtime import ray_on_demand
    from data_prep.job import prepare

    with ray_on_demand():
        prepare(_config(folder))


def _verify(folder: Path) -> None:
    from data_prep.verify import verify_preparation

    verify_preparation(folder / "out")


def _lineage(folder: Path) -> None:
    from contextlib import redirect_stdout

    from pipeline.commands.inspect import lineage

    with (folder / "lineage").open("w") as printed, redirect_stdout(printed):
        lineage(str(folder / "out" / "tokens"), files=False, runs_dir=folder, as_json=False)


def _read_manifest(folder: Path) -> None:
    from cluster.artefacts.manifest import read_manifest

    read_manifest(folder / "out" / "documents")


_COMMANDS = {
    "planned": _plan,
    "prepared": _prepare,
    "confirmed": _prepare,
    "verified": _verify,
    "lineage of the tokens": _lineage,
    "manifest of the documents read": _read_manifest,
}


def _config(folder: Path) -> PreparationConfig:
    many = {"kind": "json_lines", "name": "many", "paths": [f"{folder}/texts/*/*"], "id_field": "id"}
    return PreparationConfig.model_validate(
        {
            "name": "benchmark",
            "out": str(folder / "out"),
            "sources": [many],
            "min_characters": 1,
            "tokenizer": {"vocab_size": 1024, "train_bytes": 1_000_000},
            "shard_bytes": FILES_PER_SHARD * len(_LINE % (0, 0)),
        }
    )
