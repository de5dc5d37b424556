"""Verbs on long histories: a run with many checkpoints, one with a long log, and many runs in one directory.

Processor seconds and peak memory of each command, beside the same command on the tiny run that all were copied from.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, repeat
from pathlib import Path

import orjson

from pipeline.run.directory import RunDirectory
from pipeline.run.log.log import LogSeals

NUM_CHECKPOINTS = 10_000
NUM_LOG_LINES = int(os.environ.get("CLOZE_BENCHMARK_LOG_LINES", 10_000_000))
NUM_RUNS = 10_000
_SETTINGS = (
    "steps=12",
    "checkpoint.every_steps=4",
    "checkpoint.keep_last=3",
    "checkpoint.keep_every_steps=1",
)
_SHORT = "short-00000000"
_LONG = "long-00000001"
_LAUNCHER = """
import os, resource, subprocess, sys
subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, check=True)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print([used.ru_utime + used.ru_stime, used.ru_maxrss * 1024])
"""
"""A process starts with the peak memory of the process that started it, so that must be a small one."""


@dataclass(frozen=True, slots=True)
class Verb:
    """One command, on a long history and on a short one."""

    command: str
    history: str
    seconds: float
    """Of a processor."""
    memory_bytes: int
    """Peak."""
    short_seconds: float
    """On the short history."""

    def __str__(self) -> str:
        return (
            f"cloze {self.command}, {self.history}: {self.seconds:.2f} s of a processor and"
            f" {self.memory_bytes / 2**20:,.0f} MiB; on a short history {self.short_seconds:.2f} s"
        )


def run() -> Iterator[Verb]:
    """All commands on all histories."""
    from tests.conftest import write_store
    from tests.pipeline.ranks import make_run, train

    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        run = make_run(directory, write_store(directory / "tokens"), _SHORT, *_SETTINGS)
        train(run, 1)
        verbs = ("runs", "checkpoints {}", "lineage {}@latest", "resume {} --dry-run", "describe {}")
        short = {verb: _measure(verb, _SHORT, run.path.parent)[0] for verb in verbs}
        for history, make in {
            f"{NUM_CHECKPOINTS:,} checkpoints": _many_checkpoints,
            f"a log of {NUM_LOG_LINES:,} lines": _long_log,
        }.items():
            runs = directory / "long" / "runs"
            make(run.path, runs / _LONG)
            for verb in verbs:
                yield Verb(verb.format("RUN"), history, *_measure(verb, _LONG, runs), short[verb])
            shutil.rmtree(runs)
        for number in range(NUM_RUNS):
            shutil.copytree(run.path, runs / f"tiny-{number:08x}", copy_function=os.link)
        for verb in verbs[:2]:
            found = _measure(verb, f"tiny-{NUM_RUNS // 2:08x}", runs)
            yield Verb(verb.format("RUN"), f"{NUM_RUNS:,} runs", *found, short[verb])


def _measure(verb: str, run: str, runs_dir: Path) -> tuple[float, int]:
    """Processor seconds and peak bytes of a command."""
    command = [sys.executable, "-m", "pipeline.cli", *verb.format(run).split(), "--runs-dir", str(runs_dir)]
    done = subprocess.run([sys.executable, "-c", _LAUNCHER, *command], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}:\n{done.stderr[-2000:]}")
    return tuple(orjson.loads(done.stdout))


def _many_checkpoints(short: Path, long: Path) -> None:
    """The run's checkpoints again and again under other steps, their files as links."""
    shutil.copytree(short, long)
    checkpoints = sorted((short / "checkpoints").glob("step-*"))
    for number in range(NUM_CHECKPOINTS):
        name = f"step-{100 + number:08d}"
        shutil.copytree(checkpoints[-1], long / "checkpoints" / name, copy_function=os.link)


def _long_log(short: Path, long: Path) -> None:
    """The steps that the run logged, again and again before those that it ended with."""
    shutil.copytree(short, long)
    lines = (short / "log.jsonl").read_bytes().splitlines(keepends=True)
    block = [line for line in lines if b'"kind":"train"' in line]
    run = RunDirectory(long)
    run.log_seals.unlink()
    seals = LogSeals(run, 0)
    with run.log.open("wb") as log:
        for part in chain(repeat(b"".join(block), NUM_LOG_LINES // len(block)), lines):
            log.write(part)
            seals.add(part)
    seals.close_stretch()
