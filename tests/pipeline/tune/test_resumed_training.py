"""A training that is killed goes on after its last saved update."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
from pathlib import Path

import orjson
import pytest
import torch
from accelerate import Accelerator
from safetensors.torch import load_file, save_file
from torch import nn

from cluster.artefacts.manifest import read_manifest
from pipeline.optimizers import OPTIMIZERS
from pipeline.run.tracking import connect, tracking_uri
from pipeline.tasks.settings import TrainingConfig
from pipeline.tune import trainer
from pipeline.tune.learner import PlainLearner
from pipeline.tune.run import finetune
from pipeline.tune.scores import IN_PROGRESS, EpochScore
from pipeline.tune.training_state import TrainingState
from tests.pipeline.tune.conftest import TRAINING, config_in, make_checkpoint, write_sst2, write_tokenizer

ROOT = Path(__file__).parents[3]


def killed_in(folder: Path, update: int) -> None:
    """Train twice, 24 updates each, all of them saved; this process ends by SIGKILL in an update, 0 for none.

    Updates are counted over both trainings.
    """
    made, original = 0, trainer.make_update

    def make(*args):
        nonlocal made
        made += 1
        if made == update:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*args)

    trainer.make_update = make
    if not (folder / "SST-2").exists():
        write_sst2(folder / "SST-2", 64, 45)
        write_tokenizer(folder / "tokenizer.json")
    start = make_checkpoint(folder / f"checkpoint-{os.getpid()}", folder / "tokenizer.json")
    training = TRAINING | {"keep": "best", "layer_decay": 0.9}
    # MLflow has no logged model of it.
    finetune(config_in(folder, training=training, save_every_s=0), dataclasses.replace(start, model_id=None))


def run(folder: Path, update: int = 0) -> int:
    code = "from tests.pipeline.tune.test_resumed_training import killed_in, Path"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; killed_in(Path('{folder}'), {update})"],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode in (0, -signal.SIGKILL), done.stderr[-4000:]
    return done.returncode


def test_training_killed_twice_is_bit_identical_to_an_uninterrupted_one(tmp_path):
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    killed.mkdir(), whole.mkdir()
    # In the first epoch of the first training, and, counted from there, in the last of the second one.
    assert run(killed, 13) == run(killed, 30) == -signal.SIGKILL
    (state,) = (killed / "finetuned").rglob(f"{IN_PROGRESS}/*.safetensors")
    assert state.name == "reviews-pretrained-2.safetensors"
    assert run(killed) == run(whole) == 0
    one, two = (read_manifest(folder / "finetuned/small/tiny@5") for folder in (killed, whole))
    assert one.fingerprint == two.fingerprint
    assert not list((killed / "finetuned").rglob(IN_PROGRESS))
    runs = connect(tracking_uri(killed / "runs")).search_runs(["1"])
    assert sorted((found.info.run_name, found.info.status) for found in runs) == [
        ("small/tiny@5/reviews-pretrained-1", "FINISHED"),
        ("small/tiny@5/reviews-pretrained-2", "FINISHED"),
    ]
    losses = orjson.loads((killed / "finetuned/small/tiny@5/losses-reviews-pretrained-2.json").read_bytes())
    assert len(losses) == 24


@pytest.fixture
def learner() -> PlainLearner:
    torch.manual_seed(0)
    found = PlainLearner(Accelerator(cpu=True), nn.Linear(3, 2), TrainingConfig())
    found.network(torch.ones(1, 3)).sum().backward()
    found.update(1e-3)
    return found


def state_in(path: Path, identity: str = "me") -> TrainingState:
    return TrainingState(path, identity, Accelerator(cpu=True), 60)


def test_state_comes_back_as_it_was_saved(tmp_path, learner):
    path = tmp_path / "new" / "a.safetensors"
    state = state_in(path)
    state.tracked_run = "run-7"
    state.restore(learner)
    assert (state_in(path).tracked_run, state_in(path).updates) == ("run-7", 0)
    state.updates, state.losses, state.curve = 6, [0.25, 1 / 3], [0.1] * 4
    state.epochs = [EpochScore(update=4, loss=0.1 + 0.2, metrics={"accuracy": 1 / 3})]
    state.kept_epoch, state.outputs = 1, torch.arange(6.0).view(3, 2).numpy()
    state.weights = {name: tensor + 1 for name, tensor in learner.whole().state_dict().items()}
    state.save(learner)
    fresh = PlainLearner(Accelerator(cpu=True), nn.Linear(3, 2), TrainingConfig())
    found = state_in(path)
    found.restore(fresh)
    for field in ("tracked_run", "updates", "losses", "curve", "epochs", "kept_epoch"):
        assert getattr(found, field) == getattr(state, field)
    assert found.outputs is not None
    assert found.outputs.tolist() == state.outputs.tolist()
    torch.testing.assert_close(found.weights, state.weights, rtol=0, atol=0)
    assert len(learner.tensors()) == 2 + 2 * 3
    torch.testing.assert_close(fresh.tensors(), learner.tensors(), rtol=0, atol=0)


def test_another_tracked_run_is_noted_before_the_next_save(tmp_path, learner):
    path = tmp_path / "a.safetensors"
    state = state_in(path)
    state.tracked_run, state.updates, state.losses = "deleted", 6, [0.25, 1 / 3]
    state.kept_epoch, state.outputs = 1, torch.ones(3, 2).numpy()
    state.save(learner)
    tensors = load_file(path)
    again = state_in(path)
    again.tracked_run = "new"
    again.restore(PlainLearner(Accelerator(cpu=True), nn.Linear(3, 2), TrainingConfig()))
    found = state_in(path)
    assert (found.tracked_run, found.updates, found.losses) == ("new", 6, state.losses)
    torch.testing.assert_close(load_file(path), tensors, rtol=0, atol=0)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_every_optimizer_goes_on_bit_for_bit_from_its_saved_state(tmp_path, kind):
    settings = TrainingConfig.model_validate({"optimizer": {"kind": kind}, "layer_decay": 0.9})

    def made() -> PlainLearner:
        torch.manual_seed(0)
        return PlainLearner(Accelerator(cpu=True), nn.Linear(3, 2), settings)

    def train(learner: PlainLearner, *updates: int) -> PlainLearner:
        for update in updates:
            torch.manual_seed(update)
            learner.network(torch.randn(4, 3)).square().sum().backward()
            learner.update(1e-2)
        return learner

    state = state_in(tmp_path / "a.safetensors")
    state.updates = 3
    state.save(train(made(), 1, 2, 3))
    resumed = made()
    state_in(tmp_path / "a.safetensors").restore(resumed)
    whole = train(made(), 1, 2, 3, 4, 5).tensors()
    torch.testing.assert_close(train(resumed, 4, 5).tensors(), whole, rtol=0, atol=0)
    assert not torch.equal(whole["model.weight"], made().tensors()["model.weight"])


@pytest.mark.parametrize("damage", ["other training", "cut", "no state", "absent"])
def test_state_that_does_not_fit_or_cannot_be_read_costs_only_its_updates(tmp_path, learner, damage):
    path = tmp_path / "a.safetensors"
    state = state_in(path)
    state.updates = 5
    state.save(learner)
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:100])
    elif damage == "no state":
        save_file({"model.weight": torch.ones(1)}, path)
    elif damage == "absent":
        path.unlink()
    assert state_in(path, "another" if damage == "other training" else "me").updates == 0
