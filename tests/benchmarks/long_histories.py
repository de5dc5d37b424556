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
from itertools import chain, repeat
from pathlib import Path

import orjson

from cluster.artefacts.manifest import make_manifest, read_manifest, write_manifest
from pipeline.checkpoint.checkpoint import checkpoint_name, list_checkpoints
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


def run() -> Iterator[str]:
    """All commands on all histories."""
    from tests.conftest import write_store
    from tests.pipeline.ranks import make_run, train

    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        run = make_run(directory, write_store(directory / "tokens"), _SHORT, *_SETTINGS)
        train(run, 1)
        verbs = ("runs", "checkpoints {}", "lineage {}@latest", "resume {} --dry-run", "describe {}")
        short = {verb: _measure(verb, _SHORT, run.path.parent)[0] for verb in verbs}

        def verb_on(verb: str, history: str, run: str, runs: Path) -> str:
            seconds, memory_bytes = _measure(verb, run, runs)
            return (
                f"cloze {verb.format('RUN')}, {history}: {seconds:.2f} s of a processor and {memory_bytes / 2**20:,.0f}"
                f" MiB; on a short history {short[verb]:.2f} s"
            )

        for history, make in {
            f"{NUM_CHECKPOINTS:,} checkpoints": _many_checkpoints,
            f"a log of {NUM_LOG_LINES:,} lines": _long_log,
        }.items():
            runs = directory / "long" / "runs"
            make(run.path, runs / _LONG)
            for verb in verbs:
                yield verb_on(verb, history, _LONG, runs)
            shutil.rmtree(runs)
        for number in range(NUM_RUNS):
            shutil.copytree(run.path, runs / f"tiny-{number:08x}", copy_function=os.link)
        for verb in verbs[:2]:
            yield verb_on(verb, f"{NUM_RUNS:,} runs", f"tiny-{NUM_RUNS // 2:08x}", runs)


def _measure(verb: str, run: str, runs_dir: Path) -> tuple[float, int]:
    """Processor seconds and peak bytes of memory of a command."""
    command = [sys.executable, "-m", "pipeline.cli", *verb.format(run).split(), "--runs-dir", str(runs_dir)]
    done = subprocess.run([sys.executable, "-c", _LAUNCHER, *command], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}:\n{done.stderr[-2000:]}")
    return tuple(orjson.loads(done.stdout))


def _many_checkpoints(short: Path, long: Path) -> None:
    """The run's last checkpoint again and again under other steps, its files as links."""
    shutil.copytree(short, long)
    last = list_checkpoints(short / "checkpoints")[-1]
    found = read_manifest(last)
    for step in range(100, 100 + NUM_CHECKPOINTS):
        copy = long / "checkpoints" / checkpoint_name(step)
        shutil.copytree(last, copy, copy_function=os.link)
        own = {"inputs": found.inputs, "files": found.files, "stats": found.stats}
        write_manifest(copy, make_manifest(found.kind, config={**found.config, "step": step}, **own))


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
