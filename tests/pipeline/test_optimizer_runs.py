"""Runs with the optimizers that are written in torch go on from a checkpoint bit for bit, averages included."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from pipeline.checkpoint.checkpoint import EMA_FILE, MODEL_FILE, list_checkpoints
from pipeline.run.directory import RunDirectory
from pipeline.run.log.lines import read_metrics
from tests.pipeline.one_rank import train_alone
from tests.pipeline.ranks import make_run

End = tuple[list[float], dict[str, torch.Tensor]]
"""The losses of all steps, and the last checkpoint's weights and their averages."""
RUNS = {
    "lamb": (),
    "adafactor": ("optimizer.lr=1e-2", "optimizer.beta1=0.9"),
    "stable_adamw": (),
    "muon": ("precision=bf16",),
}
EVERY = ("zero.stage=0", "steps=8", "checkpoint.every_steps=4", "evaluation.every_steps=100", "ema.decay=0.9")


def end_of(run: RunDirectory) -> End:
    last = list_checkpoints(run.checkpoints)[-1]
    tensors = {
        f"{file} {name}": tensor
        for file in (MODEL_FILE, EMA_FILE)
        for name, tensor in load_file(last / file).items()
    }
    return [metrics["loss"] for metrics in read_metrics(run)], tensors


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory, store: Path) -> dict[str, list[End]]:
    """By optimizer, the end of a run, and its end after it lost its last checkpoint and went on from the one before."""
    directory = tmp_path_factory.mktemp("optimizers")
    runs = {
        kind: make_run(directory, store, kind, *EVERY, f"optimizer.kind={kind}", *overrides)
        for kind, overrides in RUNS.items()
    }
    assert train_alone(list(runs.values())) == ["ended"] * len(runs)
    whole = {kind: end_of(run) for kind, run in runs.items()}
    for run in runs.values():
        shutil.rmtree(list_checkpoints(run.checkpoints)[-1])
    assert train_alone(list(runs.values())) == ["ended"] * len(runs)
    for run in runs.values():
        assert [event["step"] for event in run.events() if event["event"] == "started"] == [0, 4]
    return {kind: [whole[kind], end_of(run)] for kind, run in runs.items()}


@pytest.mark.parametrize("kind", RUNS)
def test_a_run_of_two_halves_is_the_whole_run_bit_for_bit(kind: str, ends: dict[str, list[End]]) -> None:
    (losses, weights), (losses_again, weights_again) = ends[kind]
    assert len(losses) == 8
    assert losses_again == losses
    assert weights_again.keys() == weights.keys()
    assert all(torch.equal(tensor, weights_again[name]) for name, tensor in weights.items())
