"""A run that is killed by SIGKILL and resumed, with deterministic algorithms, beside one that never stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch

from pipeline.run.directory import RunDirectory
from pipeline.run.log.lines import read_metrics
from tests.benchmarks.gpu.agreement import Check
from tests.conftest import write_store
from tests.pipeline.ranks import TRANSFORMER, make_run
from tests.pipeline.run_state import final_state

STEPS, KILLED_AFTER = 40, 15
PATIENCE_S = 300
SETTINGS = (
    f"steps={STEPS}",
    "checkpoint.every_steps=10",
    "evaluation.every_steps=20",
    "compute.deterministic=true",
)


def resumed_runs_are_identical(precisions: tuple[str, ...], **environment: str) -> Iterator[Check]:
    """Checks for each precision: differing tensors of weights and optimizer, and differing losses.

    Args:
        environment: variables of the trainers, besides those of this process.
    """
    with tempfile.TemporaryDirectory() as scratch:
        store = write_store(Path(scratch) / "tokens")
        for precision in precisions:
            whole, killed = (
                make_run(
                    Path(scratch),
                    store,
                    f"{precision}-{name}",
                    f"precision={precision}",
                    *SETTINGS,
                    model=_model(),
                )
                for name in ("whole", "killed")
            )
            _train(whole, environment)
            _kill(killed, environment)
            _train(killed, environment)
            yield Check(
                f"{precision}, tensors that differ after a kill", float(_different_tensors(whole, killed))
            )
            losses = [[line["loss"] for line in read_metrics(run)] for run in (whole, killed)]
            apart = sum(one != other for one, other in zip(*losses, strict=True))
            yield Check(f"{precision}, losses of {STEPS} steps that differ after a kill", float(apart))


def _model() -> str:
    """A network that the variable-length kernel can compute: heads of 32, no dropout of attention weights."""
    return TRANSFORMER.replace("hidden_size: 32", "hidden_size: 64, attention_dropout: 0.0")


def _start(run: RunDirectory, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    with (run.path / "output").open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "pipeline.pretrain", str(run.path)],
            env=os.environ | {"DS_ACCELERATOR": "cuda"} | environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _train(run: RunDirectory, environment: Mapping[str, str]) -> None:
    if code := _start(run, environment).wait(PATIENCE_S):
        raise RuntimeError(f"exit code {code}:\n{(run.path / 'output').read_text()[-4000:]}")


def _kill(run: RunDirectory, environment: Mapping[str, str]) -> None:
    """Start a run, and kill all its processes when a step between two checkpoints is in the log."""
    process, deadline = _start(run, environment), time.monotonic() + PATIENCE_S
    while not any(line["step"] >= KILLED_AFTER for line in read_metrics(run)):
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError((run.path / "output").read_text()[-4000:])
        time.sleep(0.005)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _different_tensors(one: RunDirectory, other: RunDirectory) -> int:
    first, second = final_state(one), final_state(other)
    if first.keys() != second.keys():
        raise RuntimeError(f"other tensors: {sorted(first.keys() ^ second.keys())}")
    return sum(not torch.equal(tensor, second[name]) for name, tensor in first.items())
