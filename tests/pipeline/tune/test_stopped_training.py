"""SIGTERM and Ctrl-C in the middle of a training: its state is saved, and the same command goes on."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from cluster import signals as cluster_signals
from cluster.artefacts.errors import PreemptedError
from cluster.artefacts.manifest import read_manifest
from pipeline.run.tracking import connect, tracking_uri
from pipeline.tune import trainer
from pipeline.tune.run import finetune
from pipeline.tune.scores import IN_PROGRESS
from pipeline.tune.training_state import TrainingState
from tests.pipeline.tune.conftest import SIZES, TRAINING


@pytest.fixture
def config(make_config, tokenizer_path):
    """Two trainings of 24 updates; only a stop saves them."""
    scratch = {"model": SIZES, "tokenizer": tokenizer_path}
    return make_config(training=TRAINING | {"keep": "best"}, scratch=scratch, save_every_s=3600)


@pytest.fixture
def whole(config, tmp_path) -> str:
    """The fingerprint of the same trainings that nothing stopped."""
    whole = config.model_copy(update={"out": tmp_path / "whole", "runs_dir": tmp_path / "whole-runs"})
    finetune(whole, None)
    return fingerprint(whole)


def fingerprint(config) -> str:
    return read_manifest(config.out / "small/random").fingerprint


@contextmanager
def signals_in_update(number: int, *signals: int) -> Iterator[list[int]]:
    """This process receives signals in an update, counted from 1 over all trainings. Yields all updates."""
    made: list[int] = []
    original = trainer.make_update

    def make(*args):
        made.append(args[-2])
        if len(made) == number:
            for each in signals:
                os.kill(os.getpid(), each)
        return original(*args)

    trainer.make_update = make
    # In programs in the background of a shell, SIGINT is ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield made
    finally:
        trainer.make_update = original
        signal.signal(signal.SIGINT, before)


def statuses(config) -> list[tuple[str, str]]:
    runs = connect(tracking_uri(config.runs_dir)).search_runs(["1"])
    return sorted((str(run.info.run_name).rpartition("/")[-1], run.info.status) for run in runs)


def test_training_stopped_by_sigterm_is_bit_identical_to_an_uninterrupted_one(config, whole):
    with (
        signals_in_update(24 + 13, signal.SIGTERM),
        pytest.raises(PreemptedError, match=r"reviews-random-2 .* 13.*SIGTERM") as stopped,
    ):
        finetune(config, None)
    assert stopped.value.exit_code == 75
    assert statuses(config) == [("reviews-random-1", "FINISHED"), ("reviews-random-2", "KILLED")]
    with signals_in_update(0) as made:
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
            os.kill(os.getpid(), signal.SIGTERM)
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
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(TrainingState, "save", interrupted)
    monkeypatch.setattr(cluster_signals, "SAME_S", 0.0)
    with (
        signals_in_update(5, signal.SIGTERM),
        pytest.raises(PreemptedError, match="again"),
    ):
        finetune(config, None)
    monkeypatch.undo()
    assert statuses(config) == [("reviews-random-1", "KILLED")]
    assert len(finetune(config, None)) == 2
    assert not list(config.out.rglob("*.tmp"))


def test_ctrl_c_ends_a_training_and_its_tracked_run(config):
    with signals_in_update(3, signal.SIGINT), pytest.raises(KeyboardInterrupt):
        finetune(config, None)
    assert statuses(config) == [("reviews-random-1", "KILLED")]
