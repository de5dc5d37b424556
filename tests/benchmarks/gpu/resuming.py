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
from tests.pipeline.ranks import TRANSFORMER, final_state, make_run

STEPS, KILLED_AFTER = 40, 15
PATIENCE_S = 300
SETTINGS = (
    f"steps={STEPS}",
    "checkpoint.every_steps=10",
    "evaluation.every_steps=20",
    "compute.deterministic=true",
)
MODEL = TRANSFORMER.replace("hidden_size: 32", "hidden_size: 64, attention_dropout: 0.0")
"""A network that the variable-length kernel can compute: heads of 32, no dropout of attention weights."""


def resumed_runs_are_identical(precisions: tuple[str, ...], **environment: str) -> Iterator[Check]:
    """Checks for each precision: differing tensors of weights and optimizer, and differing losses.

    Args:
        environment: variables of the trainers, besides those of this process.
    """
    with tempfile.TemporaryDirectory() as scratch:
        store = write_store(Path(scratch) / "tokens")
        for precision in precisions:
            settings = (f"precision={precision}", *SETTINGS)
            whole, killed = (
                make_run(Path(scratch), store, f"{precision}-{name}", *settings, model=MODEL)
                for name in ("whole", "killed")
            )
            for run, is_killed in ((whole, False), (killed, True), (killed, False)):
                _train(run, environment, is_killed=is_killed)
            first, second = final_state(whole), final_state(killed)
            if first.keys() != second.keys():
                raise RuntimeError(f"other tensors: {sorted(first.keys() ^ second.keys())}")
            apart = sum(not torch.equal(tensor, second[name]) for name, tensor in first.items())
            yield Check(f"{precision}, tensors that differ after a kill", float(apart))
            losses = [[line["loss"] for line in read_metrics(run)] for run in (whole, killed)]
            apart = sum(one != other for one, other in zip(*losses, strict=True))
            yield Check(f"{precision}, losses of {STEPS} steps that differ after a kill", float(apart))


def _train(run: RunDirectory, environment: Mapping[str, str], *, is_killed: bool) -> None:
    """Train to the end, or kill all processes when a step between two checkpoints is in the log."""
    deadline = time.monotonic() + PATIENCE_S
    with (run.path / "output").open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "pipeline.pretrain", str(run.path)],
            env=os.environ | {"DS_ACCELERATOR": "cuda"} | environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    is_due = False
    while is_killed and not is_due and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
        is_due = any(line["step"] >= KILLED_AFTER for line in read_metrics(run))
    if is_killed and process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    if process.wait(PATIENCE_S) != (-signal.SIGKILL if is_killed else 0) or is_due != is_killed:
        raise RuntimeError((run.path / "output").read_text()[-4000:])
