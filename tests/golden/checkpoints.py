"""Norms of every tensor of a checkpoint and of its optimizer, by ZeRO stage and precision."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from pathlib import Path
from typing import Any

from safetensors import safe_open
from torch import Tensor

from pipeline.engine.deepspeed.saved_state import SavedState
from tests.conftest import write_store
from tests.golden.losses import train_here
from tests.pipeline.ranks import make_run

STEPS = 6
STAGES = range(4)
PRECISIONS = ("fp32", "bf16")
"""Training on a CPU refuses fp16."""


def values(directory: Path) -> dict[str, Any]:
    """By stage and precision, the files of the last checkpoint, norms of the weights and of their average, and of all
    that the optimizer keeps: float32 weights and moments."""
    store = write_store(directory / "tokens")
    lengths = (f"steps={STEPS}", f"checkpoint.every_steps={STEPS}", "ema.decay=0.9")
    runs = {}
    for precision, stage in itertools.product(PRECISIONS, STAGES):
        own = (f"zero.stage={stage}", f"precision={precision}")
        runs[f"stage {stage}, {precision}"] = make_run(
            directory, store, f"{stage}-{precision}", *lengths, *own
        )
    train_here([run.path for run in runs.values()])
    found = {}
    for name, run in runs.items():
        checkpoint = run.checkpoints / f"step-{STEPS:08d}"
        files = sorted(path.relative_to(checkpoint).as_posix() for path in checkpoint.rglob("*"))
        norms = {kind: _norms(checkpoint / f"{kind}.safetensors") for kind in ("model", "ema")}
        found[name] = {"files": files, **norms, "optimizer": _optimizer(checkpoint / "deepspeed")}
    return found


def _norms(path: Path) -> dict[str, float]:
    with safe_open(path, "pt") as file:
        return {name: file.get_tensor(name).double().norm().item() for name in sorted(file.keys())}


def _optimizer(directory: Path) -> dict[str, float]:
    saved, squares = SavedState(directory), Counter[str]()
    for master in saved.masters(0):
        for key, value in {"weights": master.weights, **master.state}.items():
            if isinstance(value, Tensor):
                squares[key] += value.double().square().sum().item()
    return {key: math.sqrt(square) for key, square in sorted(squares.items())}
