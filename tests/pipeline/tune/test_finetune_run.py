"""A whole fine-tuning run: learning, determinism, continuing, repairing, refusing."""

from __future__ import annotations

import pytest
import torch

from cluster.artefacts.errors import ClozeError, ConfigError
from cluster.artefacts.manifest import read_manifest
from pipeline.tune import runner
from pipeline.tune.run import finetune
from pipeline.tune.scores import read_scores
from tests.pipeline.tune.conftest import SIZES

TRAINING = {"batch_size": 8, "lr": 5e-3, "max_length": 16}


def test_separable_task_is_learnt_and_scores_are_committed(tune):
    tuned = tune(compare_random=True, training=TRAINING | {"epochs": 8}, seeds=[1, 2])
    assert [(s.initial, s.seed, s.reference) for s in tuned.scores] == [
        ("pretrained", 1, "tiny@5"),
        ("pretrained", 2, "tiny@5"),
        ("random", 1, None),
        ("random", 2, None),
    ]
    assert all(score.value > 0.95 for score in tuned.scores)
    assert all((s.num_train_examples, s.num_evaluation_examples) == (64, 45) for s in tuned.scores)
    assert tuned.scores == read_scores(tuned.directory)


def test_artefact_names_its_inputs_and_its_predictions_give_the_reported_accuracy(tune, checkpoint):
    tuned = tune(training=TRAINING | {"epochs": 1, "lr": 1e-3})
    manifest = read_manifest(tuned.directory)
    assert [(e.kind, e.uri.rsplit("/", 1)[-1]) for e in manifest.inputs] == [
        ("checkpoint", "tiny@5"),
        ("source-file", "tokenizer.json"),
        ("source-file", "train.tsv"),
        ("source-file", "dev.tsv"),
    ]
    assert manifest.inputs[0].fingerprint == checkpoint.fingerprint
    assert [entry.path for entry in manifest.files] == [
        "losses-reviews-pretrained-1.json",
        "predictions-reviews-pretrained-1.jsonl",
        "scores.json",
    ]
    assert str(tuned.config.out) not in str(manifest.config)
    rows = tuned.lines()
    assert len({row["id"] for row in rows}) == 45
    right = sum(row["label"] == row["prediction"] for row in rows)
    assert right / 45 == tuned.scores[0].metrics["accuracy"]


def test_same_seed_gives_identical_bytes_whatever_the_global_generators_and_another_seed_does_not(
    tune, tmp_path
):
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    one = tune(out=tmp_path / "a", seeds=[1, 2])
    assert torch.rand(1) == expected
    assert one.fingerprint == tune(out=tmp_path / "b", seeds=[1, 2]).fingerprint
    assert one.lines("reviews-pretrained-1") != one.lines("reviews-pretrained-2")


def test_finished_artefact_is_not_trained_again(tune, monkeypatch):
    scores = tune().scores
    trained = count_trainings(monkeypatch)
    assert tune().scores == scores
    assert trained == []


def test_damaged_predictions_cost_only_their_own_training(tune, monkeypatch):
    directory = tune(seeds=[1, 2]).directory
    before = read_manifest(directory)
    (directory / "predictions-reviews-pretrained-2.jsonl").write_bytes(b"damaged")
    trained = count_trainings(monkeypatch)
    tune(seeds=[1, 2])
    assert trained == [2]
    assert read_manifest(directory) == before
    assert (directory / "quarantine" / "predictions-reviews-pretrained-2.jsonl").read_bytes() == b"damaged"


def test_scores_that_lost_their_manifest_are_committed_again_without_training(tune, monkeypatch):
    tuned = tune()
    before = tuned.fingerprint
    (tuned.directory / "manifest.json").write_bytes(b"{")
    trained = count_trainings(monkeypatch)
    assert tune().fingerprint == before
    assert trained == []


def test_other_settings_are_refused_and_replacing_keeps_unchanged_trainings(tune, monkeypatch):
    tune(seeds=[1, 2])
    with pytest.raises(ConfigError, match="seeds was"):
        tune(seeds=[1, 2, 3])
    trained = count_trainings(monkeypatch)
    assert [score.seed for score in tune(seeds=[1, 2, 3], replace=True).scores] == [1, 2, 3]
    assert trained == [3]


def test_metrics_are_tracked_under_the_task_and_tied_to_the_checkpoint(tune, recorder):
    score = tune(compare_random=True).scores[0]
    pretrained, random = recorder.runs
    assert pretrained.name == "small/tiny@5/reviews-pretrained-1"
    assert pretrained.tags["cloze.reference"] == "tiny@5"
    assert ({"reviews/accuracy": score.value}, 24, "m-1") in pretrained.metrics
    assert {model_id for _, _, model_id in random.metrics} == {None}
    assert random.tags["cloze.reference"] == ""


def test_network_without_a_checkpoint_comes_from_scratch(tune, tokenizer_path):
    tuned = tune(None, scratch={"model": SIZES, "tokenizer": tokenizer_path})
    assert [(score.initial, score.reference) for score in tuned.scores] == [("random", None)]
    assert tuned.directory.name == "random"


def test_network_neither_from_a_checkpoint_nor_from_scratch_is_refused_with_what_to_type(make_config):
    with pytest.raises(ConfigError, match="--from RUN"):
        finetune(make_config(), None)


def test_diverging_training_is_reported_and_its_run_marked_failed(tune, recorder):
    with pytest.raises(ClozeError, match="not finite"):
        tune(training=TRAINING | {"epochs": 4, "lr": 1e38})
    assert recorder.runs[0].status == "FAILED"


def count_trainings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The seeds that are trained from now on."""
    trained: list[int] = []
    original = runner.train

    def train(accelerator, model, task, settings, seed, state_file, **others):
        trained.append(seed)
        return original(accelerator, model, task, settings, seed, state_file, **others)

    monkeypatch.setattr(runner, "train", train)
    return trained
