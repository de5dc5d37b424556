"""Seconds until a tiny network on one worker of this machine logs a step: a new run, and runs that are resumed.

The new run starts by `cloze pretrain CONFIG`, and all of it counts: the command line, the checks of the data, the run
in MLflow, Ray, the worker, DeepSpeed, and the first evaluation.

The resumed ones are processes of a rank, on stores of ten thousand and of eight million short documents. In turn with
them, a process only imports torch and DeepSpeed and joins a group of one: what the store, the checkpoint and the run
add to it is reported.

A first round of each warms up the machine: compiled loops and operators, and the tables of the tracking store.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

NUM_DOCUMENTS = (10_000, 8_000_000)
ROUNDS = 3
PATIENCE_S = 240
_LINE = b'"kind":"train"'
_POLL_S = 0.005
_SETTINGS = ("steps=1000000", "checkpoint.every_steps=100000", "evaluation.every_steps=100000", "seed=3")
_ONE_RANK = {"OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}
_ALONE = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
_BARE = """
import torch, deepspeed
import torch.distributed as dist
dist.init_process_group("gloo")
print("joined", flush=True)
"""


def run() -> Iterator[str]:
    """One line for the new run, and one for each store of resumed runs; medians of the rounds."""
    from tests.pipeline.ranks import make_config, make_run

    with tempfile.TemporaryDirectory() as scratch:
        runs = {}
        for count in NUM_DOCUMENTS:
            directory = Path(scratch) / f"{count}"
            directory.mkdir()
            write_short_documents(directory / "tokens", count)
            runs[count] = make_run(directory, directory / "tokens", "stopped", *_SETTINGS).path
        first = Path(scratch) / f"{NUM_DOCUMENTS[0]}"
        runs_dir = make_config(first, first / "tokens").runs_dir
        command = ["pipeline.cli", "pretrain", str(first / "tiny.yaml"), "steps=1000000"]
        times = [_until_first_step(command, {}, runs_dir) for _ in range(1 + ROUNDS)][1:]
        yield f"start: first step after {statistics.median(times):.2f} s"
        for path in runs.values():
            for _ in range(2):
                _resumed(path)
        _bare()
        found: dict[int, list[tuple[float, float]]] = {count: [] for count in runs}
        for _ in range(ROUNDS):
            for count, path in runs.items():
                found[count].append((_resumed(path), _bare()))
        for count, rounds in found.items():
            yield (
                f"resume, {count:,} documents: first step after"
                f" {statistics.median(ours for ours, _ in rounds):.2f} s, torch, DeepSpeed and group"
                f" {statistics.median(bare for _, bare in rounds):.2f} s, beyond them"
                f" {statistics.median(ours - bare for ours, bare in rounds):.2f} s"
            )


def _resumed(path: Path) -> float:
    """Seconds to the first step of a run that starts or resumes; stopping it saves a checkpoint."""
    return _until_first_step(["pipeline.pretrain", str(path)], _ONE_RANK, path.parent)


def _until_first_step(module: list[str], settings: dict[str, str], runs_dir: Path) -> float:
    """Seconds from the start of a process to a step in the log of a run in that directory; the process is stopped."""

    def steps() -> int:
        return sum(log.read_bytes().count(_LINE) for log in runs_dir.glob("*/log.jsonl"))

    before = steps()
    with tempfile.TemporaryFile() as errors:
        started = time.perf_counter()
        command = [sys.executable, "-m", *module]
        process = subprocess.Popen(
            command, env=os.environ | settings, stdout=subprocess.DEVNULL, stderr=errors
        )
        while steps() == before:
            if process.poll() is not None or time.perf_counter() - started > PATIENCE_S:
                process.kill()
                errors.seek(0)
                raise RuntimeError(errors.read().decode())
            time.sleep(_POLL_S)
        seconds = time.perf_counter() - started
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE_S)
    return seconds


def _bare() -> float:
    """Seconds from the start of a process to its place in a group."""
    started = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-c", _BARE],
        env=os.environ | _ONE_RANK | _ALONE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdout is not None
    assert any(b"joined" in line for line in process.stdout)
    seconds = time.perf_counter() - started
    process.wait(PATIENCE_S)
    return seconds


def write_short_documents(path: Path, num_documents: int) -> None:
    """Commit a token store of documents of 5 to 24 random tokens."""
    from tests.benchmarks.corpus import write_random_store

    lengths = np.random.Generator(np.random.Philox(1)).integers(5, 25, size=num_documents)
    write_random_store(path, lengths, vocab_size=200)
