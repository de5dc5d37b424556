"""Every step's loss of a short run of every objective."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.objectives import OBJECTIVES
from pipeline.run.directory import RunDirectory
from pipeline.run.log.lines import read_metrics
from tests.conftest import write_store
from tests.pipeline.ranks import TRANSFORMER, Ending, make_run
from tests.pipeline.real_text import write_text_store

STEPS = 60
DETERMINISTIC = {
    "MKL_CBWR": "COMPATIBLE",
    "ATEN_CPU_CAPABILITY": "default",
    "OMP_NUM_THREADS": "1",
    "DS_ACCELERATOR": "cpu",
}
"""The same instructions whatever the processor could do, as far as libraries promise."""
ELMO = (
    "{network: elmo, filters: [[1, 8], [2, 8]], num_highway_layers: 1, projection_size: 16, cell_size: 32,"
    " dropout: 0.1}"
)
DECODER, BOTH = "model.network=decoder", "model.network=encoder_decoder"
FAMILIES: dict[str, tuple[str, ...]] = {
    "mlm": (),
    "span": (),
    "rtd": (),
    "clm": (DECODER,),
    "prefix_lm": (DECODER,),
    "bart_denoising": (BOTH, "model.max_positions=64"),
    "mbart_denoising": (BOTH, "model.max_positions=64"),
    "t5_span_corruption": (BOTH, "model.max_positions=64"),
    "ul2_mixture_of_denoisers": (BOTH, "model.max_positions=64"),
    "bilm": (),
}
"""By objective, the settings of its network. Distillation needs a teacher, and reads what `mlm` reads."""


def values(directory: Path) -> dict[str, Any]:
    """By objective, the losses of a run's steps."""
    assert {*FAMILIES, "distill"} == OBJECTIVES.keys(), (
        "say in FAMILIES which network an objective trains here"
    )
    settings = (f"steps={STEPS}", "checkpoint.every_steps=1000", "evaluation.every_steps=1000")
    runs = train_each(directory, dict.fromkeys(FAMILIES, settings))
    return {kind: [step["loss"] for step in read_metrics(run)] for kind, run in runs.items()}


def train_each(directory: Path, settings: Mapping[str, Sequence[str]]) -> dict[str, RunDirectory]:
    """Train a run of each objective, with its settings besides those of its network."""
    store, words = write_store(directory / "tokens"), write_text_store(directory / "words", "tiny-words")
    runs = {
        kind: make_run(
            directory,
            words if kind == "bilm" else store,
            kind,
            *FAMILIES[kind],
            *own,
            objective=f"{{kind: {kind}}}",
            model=ELMO if kind == "bilm" else TRANSFORMER,
        )
        for kind, own in settings.items()
    }
    train_here([run.path for run in runs.values()])
    return runs


def train_here(runs: list[Path]) -> None:
    """Train one run after the other, in a process of their own: libraries read these settings when they are loaded."""
    train = "import sys; from tests.pipeline.ranks import train_here; print(train_here(sys.argv[1:]))"
    command = [sys.executable, "-c", train, *map(str, runs)]
    done = subprocess.run(command, env=os.environ | DETERMINISTIC, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == str([Ending("ended")] * len(runs)), done.stderr[-4000:]
