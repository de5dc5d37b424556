"""Run by test_resumed_training.py: fine-tunes a checkpoint, and kills itself in the middle of a training if told to."""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
from pathlib import Path

from pipeline.tune import trainer
from pipeline.tune.config import FinetuneConfig
from pipeline.tune.run import finetune
from tests.pipeline.tune.conftest import make_checkpoint, write_sst2, write_tokenizer

TRAINING = {"epochs": 3, "batch_size": 8, "lr": 5e-3, "max_length": 16, "keep": "best", "layer_decay": 0.9}


def make_config(folder: Path) -> FinetuneConfig:
    """Two trainings of 24 updates; every update is saved."""
    return FinetuneConfig.model_validate(
        {
            "name": "killed",
            "out": folder / "finetuned",
            "runs_dir": folder / "runs",
            "tasks": {"reviews": {"kind": "sst2", "path": folder / "SST-2"}},
            "training": TRAINING,
            "seeds": [1, 2],
            "num_threads": 1,
            "save_every_s": 0,
        }
    )


def kill_in(update: int) -> None:
    """End this process by SIGKILL when the update that is made has this number, counted over both trainings."""
    made, original = 0, trainer.make_update

    def make(*args):
        nonlocal made
        made += 1
        if made == update:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*args)

    trainer.make_update = make


def main(folder: Path, update: int) -> None:
    """Fine-tune in `folder`, killed in update `update`; in none if that is 0."""
    if not (folder / "SST-2").exists():
        write_sst2(folder / "SST-2", 64, 45)
        write_tokenizer(folder / "tokenizer.json")
    if update:
        kill_in(update)
    checkpoint = make_checkpoint(folder / f"checkpoint-{os.getpid()}", folder / "tokenizer.json")
    # MLflow has no logged model of it.
    finetune(make_config(folder), dataclasses.replace(checkpoint, model_id=None))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
