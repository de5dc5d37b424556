"""A training that is killed or stopped goes on after its last saved update."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest
import torch
from accelerate import Accelerator
from safetensors.torch import load_file, save_file
from torch import nn

from cluster import signals as cluster_signals
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


def statuses(config: FinetuneConfig) -> list[tuple[str, str]]:
    runs = connect(tracking_uri(config.runs_dir)).search_runs(["1"])
    return sorted((str(run.info.run_name).rpartition("/")[-1], run.info.status) for run in runs)


def fingerprint(config: FinetuneConfig, start: str = "random") -> str:
    return read_manifest(config.out / "small" / start).fingerprint


def test_training_killed_twice_is_bit_identical_to_an_uninterrupted_one(tmp_path):
    killed, whole = (config_in(tmp_path / name) for name in ("killed", "whole"))
    folders = [config.out.parent for config in (killed, whole)]
    for folder in folders:
        folder.mkdir()
    # In the first epoch of the first training, and, counted from there, in the last of the second one.
    assert run(folders[0], 13) == run(folders[0], 30) == -signal.SIGKILL
    (state,) = killed.out.rglob(f"{IN_PROGRESS}/*.json")
    assert state.name == "reviews-pretrained-2.json"
    assert run(folders[0]) == run(folders[1]) == 0
    assert fingerprint(killed, "tiny@5") == fingerprint(whole, "tiny@5")
    assert not list(killed.out.rglob(IN_PROGRESS))
    assert statuses(killed) == [("reviews-pretrained-1", "FINISHED"), ("reviews-pretrained-2", "FINISHED")]
    assert (
        len(orjson.loads((killed.out / "small/tiny@5/losses-reviews-pretrained-2.json").read_bytes())) == 24
    )


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


def test_second_sigterm_ends_at_once_and_leaves_nothing_that_cannot_be_read(config, monkeypatch):
    save = TrainingState.save

    def interrupted(self, *args):
        save(self, *args)
        self.path.with_name(f".{self.path.name}.tmp").write_bytes(b"half a file")
        send(signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(TrainingState, "save", interrupted)
        patch.setattr(cluster_signals, "SAME_S", 0.0)
        with (
            in_update(5, lambda: send(signal.SIGTERM)),
            pytest.raises(PreemptedError, match="again"),
        ):
            finetune(config, None)
    assert statuses(config) == [("reviews-random-1", "KILLED")]
    assert len(finetune(config, None)) == 2
    assert not list(config.out.rglob("*.tmp"))


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


FIELDS = ("tracked_run", "updates", "losses", "curve", "epochs", "kept_epoch")


def test_state_comes_back_as_it_was_saved(tmp_path):
    path, learner = tmp_path / "new" / "a.json", updated(learner_of(), 1)
    state = state_in(path)
    state.tracked_run = "run-7"
    state.restore(learner)
    assert (state_in(path).tracked_run, state_in(path).updates) == ("run-7", 0)
    state.updates, state.losses, state.curve = 6, [0.25, 1 / 3], [0.1] * 4
    state.epochs = [EpochScore(update=4, loss=0.1 + 0.2, metrics={"accuracy": 1 / 3})]
    state.kept_epoch, state.outputs = 1, torch.arange(6.0).view(3, 2).numpy()
    state.weights = {name: tensor + 1 for name, tensor in learner.whole().state_dict().items()}
    state.save(learner)
    fresh, found = learner_of(), state_in(path)
    # Another run is noted before the next save.
    found.tracked_run = "run-8"
    found.restore(fresh)
    for again in (found, state_in(path)):
        assert [getattr(again, field) for field in FIELDS] == [
            "run-8",
            *(getattr(state, field) for field in FIELDS[1:]),
        ]
    assert found.outputs is not None
    assert found.outputs.tolist() == state.outputs.tolist()
    torch.testing.assert_close(found.weights, state.weights, rtol=0, atol=0)
    assert len(learner.tensors()) == 2 + 2 * 3
    torch.testing.assert_close(fresh.tensors(), learner.tensors(), rtol=0, atol=0)
    (tensors,) = path.parent.glob("*.safetensors")
    assert load_file(tensors).keys() == {
        *learner.tensors(),
        "outputs",
        *(f"kept.{name}" for name in state.weights),
    }


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


@pytest.mark.parametrize(
    "damage",
    ["other training", "cut", "no file", "other tensors", "no tensors", "no file of tensors", "absent"],
)
def test_state_that_does_not_fit_or_cannot_be_read_costs_only_its_updates(tmp_path, damage):
    path = tmp_path / "a.json"
    state = state_in(path)
    state.updates, state.tracked_run = 5, "run-7"
    state.save(updated(learner_of(), 1))
    (tensors,) = tmp_path.glob("*.safetensors")
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:100])
    elif damage == "other tensors":
        save_file({"model.weight": torch.ones(1)}, tensors)
    elif "tensors" in damage:
        tensors.unlink()
        if damage == "no file of tensors":
            tensors.mkdir()
    elif damage == "no file":
        path.unlink()
        path.mkdir()
    elif damage == "absent":
        path.unlink()
    found = state_in(path, "another" if damage == "other training" else "me")
    assert found.updates == 0
    assert found.tracked_run == ("run-7" if "tensors" in damage else None)


@pytest.mark.parametrize("dies_in", ["write_tensors", "write_sealed"])
def test_training_that_dies_while_it_saves_has_its_state_and_its_run_from_before(
    tmp_path, monkeypatch, dies_in
):
    path, learner = tmp_path / "a.json", updated(learner_of(), 1)
    state = state_in(path)
    state.updates, state.tracked_run = 5, "run-7"
    state.save(learner)
    before = learner.tensors()["model.weight"].clone()

    def dies(*_):
        raise KeyboardInterrupt

    state.updates = 6
    monkeypatch.setattr(training_state, dies_in, lambda *_, **__: dies())
    with pytest.raises(KeyboardInterrupt):
        state.save(updated(learner, 2))
    found, resumed = state_in(path), learner_of()
    found.restore(resumed)
    assert (found.updates, found.tracked_run) == (5, "run-7")
    assert torch.equal(resumed.tensors()["model.weight"], before)
