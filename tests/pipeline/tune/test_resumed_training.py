"""A training that is killed or stopped goes on after its last saved update."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import orjson
import pytest
import torch
from accelerate import Accelerator
from safetensors.torch import save_file
from torch import nn

from cluster.artefacts.errors import PreemptedError
from cluster.artefacts.manifest import read_manifest
from pipeline.optimizers import OPTIMIZERS
from pipeline.run.tracking import connect, tracking_uri
from pipeline.tasks.settings import TrainingConfig
from pipeline.tune import trainer, training_state
from pipeline.tune.config import FinetuneConfig
from pipeline.tune.learner import PlainLearner
from pipeline.tune.run import finetune
from pipeline.tune.scores import IN_PROGRESS, EpochScore
from pipeline.tune.training_state import TrainingState
from tests.pipeline.tune.conftest import (
    TRAINING,
    config_in,
    in_update,
    make_checkpoint,
    scratch_in,
    write_sst2,
    write_tokenizer,
)

ROOT = Path(__file__).parents[3]


def send(number: int) -> None:
    os.kill(os.getpid(), number)


def killed_in(folder: Path, update: int) -> None:
    """Train twice, 24 updates each, all of them saved; this process ends by SIGKILL in an update, 0 for none."""
    if not (folder / "SST-2").exists():
        write_sst2(folder / "SST-2", 64, 45)
        write_tokenizer(folder / "tokenizer.json")
    start = make_checkpoint(folder / f"checkpoint-{os.getpid()}", folder / "tokenizer.json")
    training = TRAINING | {"keep": "best", "layer_decay": 0.9}
    config = config_in(folder, training=training, save_every_s=0)
    with in_update(update, lambda: send(signal.SIGKILL)):
        # MLflow has no logged model of it.
        finetune(config, dataclasses.replace(start, model_id=None))


def run(folder: Path, update: int = 0) -> int:
    module = "tests.pipeline.tune.test_resumed_training"
    code = f"from {module} import killed_in, Path; killed_in(Path('{folder}'), {update})"
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.returncode in (0, -signal.SIGKILL), done.stderr[-4000:]
    return done.returncode


def statuses(config: FinetuneConfig) -> list[tuple[str, str]]:
    runs = connect(tracking_uri(config.runs_dir)).search_runs(["1"])
    return sorted((str(run.info.run_name).rpartition("/")[-1], run.info.status) for run in runs)


def fingerprint(config: FinetuneConfig, start: str = "random") -> str:
    return read_manifest(config.out / "small" / start).fingerprint


def test_training_killed_twice_is_bit_identical_to_an_uninterrupted_one(tmp_path):
    killed, whole = (config_in(tmp_path / name) for name in ("killed", "whole"))
    folders = [config.out.parent for config in (killed, whole)]
    # In the first epoch of the first training, and, counted from there, in the last of the second one.
    assert run(folders[0], 13) == run(folders[0], 30) == -signal.SIGKILL
    (state,) = killed.out.rglob(f"{IN_PROGRESS}/*.json")
    assert state.name == "reviews-pretrained-2.json"
    assert run(folders[0]) == run(folders[1]) == 0
    assert fingerprint(killed, "tiny@5") == fingerprint(whole, "tiny@5")
    assert not list(killed.out.rglob(IN_PROGRESS))
    assert statuses(killed) == [("reviews-pretrained-1", "FINISHED"), ("reviews-pretrained-2", "FINISHED")]
    losses = orjson.loads((killed.out / "small/tiny@5/losses-reviews-pretrained-2.json").read_bytes())
    assert len(losses) == 24


@pytest.fixture
def config(make_config, tokenizer_path) -> Iterator[FinetuneConfig]:
    """Two trainings of 24 updates; only a stop saves them."""
    # In programs in the background of a shell, SIGINT is ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    scratch = scratch_in(tokenizer_path.parent)
    yield make_config(training=TRAINING | {"keep": "best"}, scratch=scratch, save_every_s=3600)
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def whole(config, tmp_path) -> str:
    """The fingerprint of the same trainings that nothing stopped."""
    whole = config.model_copy(update={"out": tmp_path / "whole", "runs_dir": tmp_path / "whole-runs"})
    finetune(whole, None)
    return fingerprint(whole)


def test_training_stopped_by_sigterm_is_bit_identical_to_an_uninterrupted_one(config, whole):
    with (
        in_update(24 + 13, lambda: send(signal.SIGTERM)),
        pytest.raises(PreemptedError, match=r"reviews-random-2 .* 13.*SIGTERM") as stopped,
    ):
        finetune(config, None)
    assert stopped.value.exit_code == 75
    assert statuses(config) == [("reviews-random-1", "FINISHED"), ("reviews-random-2", "KILLED")]
    with in_update(0, lambda: None) as made:
        finetune(config, None)
    assert made == list(range(13, 24))
    assert statuses(config) == [("reviews-random-1", "FINISHED"), ("reviews-random-2", "FINISHED")]
    assert fingerprint(config) == whole
    assert not list(config.out.rglob(IN_PROGRESS))


def test_training_stopped_while_it_is_scored_goes_on_with_the_scores(config, whole, monkeypatch):
    scored, original = 0, trainer.evaluate

    def evaluate(*args):
        nonlocal scored
        scored += 1
        if scored == 2:
            send(signal.SIGTERM)
        return original(*args)

    monkeypatch.setattr(trainer, "evaluate", evaluate)
    with pytest.raises(PreemptedError, match=r"reviews-random-1 .* 16"):
        finetune(config, None)
    finetune(config, None)
    assert fingerprint(config) == whole


def test_ctrl_c_ends_a_training_and_its_tracked_run(config):
    with in_update(3, lambda: send(signal.SIGINT)), pytest.raises(KeyboardInterrupt):
        finetune(config, None)
    assert statuses(config) == [("reviews-random-1", "KILLED")]


def learner_of(**settings) -> PlainLearner:
    torch.manual_seed(0)
    return PlainLearner(
        Accelerator(cpu=True),
        nn.Linear(3, 2),
        TrainingConfig.model_validate({"layer_decay": 0.9, **settings}),
    )


def updated(learner: PlainLearner, *updates: int) -> PlainLearner:
    for update in updates:
        torch.manual_seed(update)
        learner.network(torch.randn(4, 3)).square().sum().backward()
        learner.update(1e-2)
    return learner


def state_in(path: Path, identity: str = "me") -> TrainingState:
    return TrainingState(path, identity, Accelerator(cpu=True), 60)


def test_state_comes_back_as_it_was_saved(tmp_path):
    state, learner = state_in(tmp_path / "a.json"), updated(learner_of(), 1)
    state.updates, state.losses, state.curve, state.kept_epoch = 6, [0.25, 1 / 3], [0.1] * 4, 1
    state.epochs = [EpochScore(update=4, loss=0.1 + 0.2, metrics={"accuracy": 1 / 3})]
    state.outputs = np.arange(6.0).reshape(3, 2)
    state.weights = {name: tensor + 1 for name, tensor in learner.whole().state_dict().items()}
    state.save(learner)
    fresh, found = learner_of(), state_in(state.path)
    # Another run is noted before the next save, and nothing else changes.
    found.tracked_run = state.tracked_run = "run-8"
    found.restore(fresh)
    for name in ("tracked_run", "updates", "losses", "curve", "epochs", "kept_epoch"):
        assert getattr(found, name) == getattr(state_in(state.path), name) == getattr(state, name), name
    np.testing.assert_array_equal(found.outputs, state.outputs)
    expected = (state.weights, learner.tensors())
    torch.testing.assert_close((found.weights, fresh.tensors()), expected, rtol=0, atol=0)


def test_run_in_mlflow_is_noted_before_the_first_save(tmp_path):
    state = state_in(tmp_path / "a.json")
    state.tracked_run = "run-7"
    state.restore(learner_of())
    assert (state_in(state.path).tracked_run, state_in(state.path).updates) == ("run-7", 0)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_every_optimizer_goes_on_bit_for_bit_from_its_saved_state(tmp_path, kind):
    made, path = {"optimizer": {"kind": kind}}, tmp_path / "a.json"
    state = state_in(path)
    state.updates = 3
    state.save(updated(learner_of(**made), 1, 2, 3))
    resumed = learner_of(**made)
    state_in(path).restore(resumed)
    whole = updated(learner_of(**made), 1, 2, 3, 4, 5).tensors()
    torch.testing.assert_close(updated(resumed, 4, 5).tensors(), whole, rtol=0, atol=0)
    assert not torch.equal(whole["model.weight"], learner_of(**made).tensors()["model.weight"])


DAMAGE: dict[str, tuple[str, Callable[[Path], object]]] = {
    "cut": ("json", lambda path: path.write_bytes(path.read_bytes()[:100])),
    "absent": ("json", lambda path: path.unlink()),
    "a directory": ("json", lambda path: (path.unlink(), path.mkdir())),
    "other tensors": ("safetensors", lambda path: save_file({"model.weight": torch.ones(1)}, path)),
    "no tensors": ("safetensors", lambda path: path.unlink()),
    "a directory of tensors": ("safetensors", lambda path: (path.unlink(), path.mkdir())),
}
"""By name, the file that is damaged, and how."""


@pytest.mark.parametrize("name", DAMAGE)
def test_state_that_does_not_fit_or_cannot_be_read_costs_only_its_updates(tmp_path, name):
    damaged, damage = DAMAGE[name]
    state = state_in(tmp_path / "a.json")
    state.updates, state.tracked_run = 5, "run-7"
    state.save(updated(learner_of(), 1))
    assert state_in(tmp_path / "a.json", "another").updates == 0
    (path,) = tmp_path.glob(f"*.{damaged}")
    damage(path)
    found = state_in(tmp_path / "a.json")
    assert found.updates == 0
    assert found.tracked_run == ("run-7" if damaged == "safetensors" else None)


@pytest.mark.parametrize("dies_in", ["write_tensors", "write_sealed"])
def test_training_that_dies_while_it_saves_has_its_state_and_its_run_from_before(
    tmp_path, monkeypatch, dies_in
):
    state, learner = state_in(tmp_path / "a.json"), updated(learner_of(), 1)
    state.updates, state.tracked_run = 5, "run-7"
    state.save(learner)
    before = learner.tensors()["model.weight"].clone()
    state.updates = 6

    def interrupt():
        raise KeyboardInterrupt

    monkeypatch.setattr(training_state, dies_in, lambda *_, **__: interrupt())
    with pytest.raises(KeyboardInterrupt):
        state.save(updated(learner, 2))
    found, resumed = state_in(state.path), learner_of()
    found.restore(resumed)
    assert (found.updates, found.tracked_run) == (5, "run-7")
    assert torch.equal(resumed.tensors()["model.weight"], before)
