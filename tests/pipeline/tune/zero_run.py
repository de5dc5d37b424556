"""Run under `torchrun` by test_zero.py: trains in every ZeRO stage and reports what each one did."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from cluster.artefacts.errors import PreemptedError
from cluster.artefacts.manifest import read_manifest
from pipeline.tune import trainer
from pipeline.tune.config import FinetuneConfig
from pipeline.tune.learner import make_accelerator, on_first
from pipeline.tune.run import finetune
from pipeline.tune.trials import scores_directory
from tests.pipeline.tune import launched_run
from tests.pipeline.tune.conftest import Recorder, predictions
from tests.pipeline.tune.launched_run import make_inputs

CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "stage 0": {"zero": {"stage": 0}},
    "stage 1": {"zero": {"stage": 1}},
    "stage 3": {"zero": {"stage": 3, "offload_optimizer": {}, "offload_parameters": {}}},
    "plain, lora": {"peft": {"kind": "lora", "rank": 2}},
    "stage 2, lora": {"zero": {"stage": 2}, "peft": {"kind": "lora", "rank": 2}},
    "plain, bf16": {"precision": "bf16"},
    "stage 2, bf16": {"zero": {"stage": 2}, "precision": "bf16"},
}
RESUMED = {"stage 3": "stage 3", "stage 1": "plain", "plain": "stage 1"}
"""Cases that are stopped in an update, and the cases that go on from there."""
# The gradient of keys' biases is zero but for rounding, which a smaller epsilon would make updates of.
TRAINING = launched_run.TRAINING | {"keep": "best", "optimizer": {"eps": 1e-6}}


def configured(folder: Path, name: str, case: dict[str, Any], **changes: Any) -> FinetuneConfig:
    case = dict(case)
    method = {"peft": case.pop("peft")} if "peft" in case else {}
    case |= {"training": TRAINING | method | changes, "save_models": not method}
    return launched_run.make_config(folder, name.replace(", ", "-").replace(" ", ""), **case)


def report(config: FinetuneConfig, recorder: Recorder | None = None) -> dict[str, Any]:
    """Train, and read what was written."""
    with recorder or Recorder():
        (score,) = finetune(config, None)
    directory = scores_directory(config, None)
    weights = directory / "model-reviews-random-1.safetensors"
    return {
        "metrics": [epoch.metrics for epoch in score.epochs],
        "losses": json.loads((directory / "losses-reviews-random-1.json").read_text()),
        "logits": [line["logits"] for line in predictions(directory, "reviews-random-1")],
        "weights": {name: tensor.double().sum().item() for name, tensor in load_file(weights).items()}
        if weights.exists()
        else {},
        "manifest": read_manifest(directory).fingerprint,
    }


def stop_in(update: int) -> None:
    """SIGTERM to the second process, when the update with this number is made; then never again."""
    original = trainer.make_update

    def make(*args):
        number = args[-2]
        if number == update:
            trainer.make_update = original
            if os.environ.get("RANK") == "1":
                os.kill(os.getpid(), signal.SIGTERM)
        return original(*args)

    trainer.make_update = make


def resumed(config: FinetuneConfig, going_on: FinetuneConfig) -> dict[str, Any]:
    """Train, stopped in an update, and then from there with other settings."""
    recorder = Recorder()
    stop_in(13)
    with pytest.raises(PreemptedError, match=" 14"), recorder:
        finetune(config, None)
    with_same = going_on.model_copy(update={"name": config.name})
    found = report(with_same, recorder)
    if os.environ["RANK"] == "0":
        assert [run.status for run in recorder.runs] == ["FINISHED"]
    return found


def main(folder: Path, precision: str) -> None:
    cases = {name: configured(folder, name, case) for name, case in CASES.items()}
    accelerator = make_accelerator(next(config for config in cases.values() if config.precision == precision))
    on_first(accelerator, lambda: make_inputs(folder))
    found = {name: report(config) for name, config in cases.items() if config.precision == precision}
    for before, after in RESUMED.items() if precision == "fp32" else ():
        stopped = cases[before].model_copy(update={"name": f"resumed-{before[-1]}"})
        found[f"{before} -> {after}"] = resumed(stopped, cases[after])
    if accelerator.is_main_process:
        (folder / "report.json").write_text(json.dumps(found))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def alone(folder: Path) -> None:
    """One epoch in stage 3, in this process."""
    make_inputs(folder)
    report(configured(folder, "alone", {"zero": {"stage": 3}}, epochs=1))


if __name__ == "__main__":
    if "alone" in sys.argv:
        alone(Path(sys.argv[1]))
    else:
        main(Path(sys.argv[1]), *sys.argv[2:] or ["fp32"])
