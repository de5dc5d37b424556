"""Seconds from `cloze pretrain CONFIG` to the first step that it logs, of a tiny network on one worker of this machine.

All of it counts: the command line, the checks of the data, the run in MLflow, Ray, the worker, DeepSpeed, and the first
evaluation. A first run warms up the machine: compiled loops and operators, and the tables of the tracking store.
"""

from __future__ import annotations

import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.benchmarks.resume import PATIENCE_S, write_short_documents

ROUNDS = 3
NUM_DOCUMENTS = 10_000
_LINE = b'"kind":"train"'
_POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class Start:
    """Medians of the rounds."""

    seconds: float
    """From the start of the command to the first logged step."""
    processor_seconds: float
    """Of all processes that live then: the command, Ray's, and the worker."""
    num_processes: int

    def __str__(self) -> str:
        return (
            f"start: first step after {self.seconds:.2f} s, {self.processor_seconds:.1f} s of processor time in"
            f" {self.num_processes} processes"
        )


def run() -> Iterator[Start]:
    """One line."""
    from tests.pipeline.ranks import make_config

    with tempfile.TemporaryDirectory() as scratch:
        write_short_documents(Path(scratch) / "tokens", NUM_DOCUMENTS)
        config = make_config(Path(scratch), Path(scratch) / "tokens")
        rounds = [_until_first_step(Path(scratch) / "tiny.yaml", config.runs_dir) for _ in range(1 + ROUNDS)][
            1:
        ]
    yield Start(
        statistics.median(one.seconds for one in rounds),
        statistics.median(one.processor_seconds for one in rounds),
        int(statistics.median(one.num_processes for one in rounds)),
    )


def _until_first_step(config: Path, runs_dir: Path) -> Start:
    """Start a run, wait for a step in its log, and stop it."""
    before = set(runs_dir.glob("*/log.jsonl"))
    command = [sys.executable, "-m", "pipeline.cli", "pretrain", str(config), "steps=1000000"]
    started = time.perf_counter()
    with (config.with_name("stderr")).open("wb") as errors:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors)
    while not any(_LINE in log.read_bytes() for log in set(runs_dir.glob("*/log.jsonl")) - before):
        if process.poll() is not None or time.perf_counter() - started > PATIENCE_S:
            process.kill()
            raise RuntimeError(config.with_name("stderr").read_text())
        time.sleep(_POLL_S)
    seconds = time.perf_counter() - started
    command_itself = psutil.Process(process.pid)
    living = [command_itself, *command_itself.children(recursive=True)]
    times = [one.cpu_times() for one in living]
    process.send_signal(signal.SIGTERM)
    process.wait(PATIENCE_S)
    return Start(seconds, sum(time.user + time.system for time in times), len(living))
