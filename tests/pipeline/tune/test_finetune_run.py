"""A whole fine-tuning run: learning, determinism, continuing, repairing, refusing."""

from __future__ import annotations

import dataclasses

import orjson
import pytest
import torch

from cluster.artefacts.errors import ConfigError, MismatchError
from cluster.artefacts.manifest import read_manifest
from pipeline.tune import run, trials
from pipeline.tune.encoding import encode_examples
from pipeline.tune.run import finetune
from pipeline.tune.scores import read_scores
from pipeline.tune.tokenizer import sequence_format
from pipeline.tune.workload import make_workload, scores_directory


def test_separable_task_is_learnt_and_scores_are_committed(make_config, checkpoint, recorder):
    training = {"epochs": 8, "batch_size": 8, "lr": 5e-3, "max_length": 16}
    config = make_config(compare_random=True, training=training)
    scores = finetune(config, checkpoint, track=recorder)
    assert [(s.initial, s.seed, s.reference) for s in scores] == [
        ("pretrained", 1, "tiny@5"),
        ("pretrained", 2, "tiny@5"),
        ("random", 1, None),
        ("random", 2, None),
    ]
    assert all(score.value > 0.95 for score in scores)
    assert all((score.num_train_examples, score.num_evaluation_examples) == (64, 45) for score in scores)
    assert scores == read_scores(scores_directory(config, checkpoint))


def test_artefact_names_its_checkpoint_and_its_task_files(make_config, checkpoint, recorder):
    config = make_config(seeds=[1])
    finetune(config, checkpoint, track=recorder)
    manifest = read_manifest(scores_directory(config, checkpoint))
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
    assert str(config.out) not in str(manifest.config)


def test_predictions_give_the_reported_accuracy(make_config, checkpoint, recorder):
    config = make_config(seeds=[1], training={"epochs": 1, "batch_size": 8, "lr": 1e-3, "max_length": 16})
    (score,) = finetune(config, checkpoint, track=recorder)
    lines = (
        (scores_directory(config, checkpoint) / "predictions-reviews-pretrained-1.jsonl")
        .read_bytes()
        .splitlines()
    )
    rows = [orjson.loads(line) for line in lines]
    assert len({row["id"] for row in rows}) == 45
    assert sum(row["label"] == row["prediction"] for row in rows) / 45 == score.metrics["accuracy"]


def test_same_seed_gives_identical_bytes_and_another_seed_does_not(
    make_config, checkpoint, recorder, tmp_path
):
    first, second = make_config(out=tmp_path / "a"), make_config(out=tmp_path / "b")
    torch.manual_seed(1)
    finetune(first, checkpoint, track=recorder)
    torch.manual_seed(2)  # the state of global generators must not matter
    finetune(second, checkpoint, track=recorder)
    one, two = (read_manifest(scores_directory(c, checkpoint)) for c in (first, second))
    assert one.fingerprint == two.fingerprint
    by_path = {entry.path: entry.xxh3_128 for entry in one.files}
    assert (
        by_path["predictions-reviews-pretrained-1.jsonl"] != by_path["predictions-reviews-pretrained-2.jsonl"]
    )


def test_global_random_state_is_left_as_it_was(make_config, checkpoint, recorder):
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    finetune(make_config(seeds=[1]), checkpoint, track=recorder)
    assert torch.rand(1) == expected


def test_finished_artefact_is_not_trained_again(make_config, checkpoint, recorder, monkeypatch):
    config = make_config(seeds=[1])
    scores = finetune(config, checkpoint, track=recorder)
    monkeypatch.setattr(run, "_make", None)
    assert finetune(config, checkpoint, track=recorder) == scores


def test_killed_run_continues_after_the_finished_trainings(make_config, checkpoint, recorder, monkeypatch):
    config = make_config(seeds=[1, 2, 3])
    trained = count_trainings(monkeypatch, die_in=3)
    with pytest.raises(KeyboardInterrupt):
        finetune(config, checkpoint, track=recorder)
    assert [r.status for r in recorder.runs] == ["FINISHED", "FINISHED", "KILLED"]
    assert not scores_directory(config, checkpoint).exists()
    del trained[:]
    monkeypatch.setattr(trials, "train", trained.original)
    trained = count_trainings(monkeypatch)
    scores = finetune(config, checkpoint, track=recorder)
    assert trained == [3]
    assert [score.seed for score in scores] == [1, 2, 3]


def test_continued_run_has_the_fingerprint_of_an_uninterrupted_one(
    make_config, checkpoint, recorder, monkeypatch, tmp_path
):
    interrupted, whole = make_config(out=tmp_path / "a"), make_config(out=tmp_path / "b")
    trained = count_trainings(monkeypatch, die_in=2)
    with pytest.raises(KeyboardInterrupt):
        finetune(interrupted, checkpoint, track=recorder)
    monkeypatch.setattr(trials, "train", trained.original)
    finetune(interrupted, checkpoint, track=recorder)
    finetune(whole, checkpoint, track=recorder)
    one, two = (read_manifest(scores_directory(c, checkpoint)) for c in (interrupted, whole))
    assert one.fingerprint == two.fingerprint


def test_damaged_predictions_cost_only_their_own_training(make_config, checkpoint, recorder, monkeypatch):
    config = make_config()
    finetune(config, checkpoint, track=recorder)
    directory = scores_directory(config, checkpoint)
    before = read_manifest(directory)
    (directory / "predictions-reviews-pretrained-2.jsonl").write_bytes(b"damaged")
    trained = count_trainings(monkeypatch)
    finetune(config, checkpoint, track=recorder)
    assert trained == [2]
    assert read_manifest(directory) == before
    assert (directory / "quarantine" / "predictions-reviews-pretrained-2.jsonl").read_bytes() == b"damaged"


def test_scores_that_lost_their_manifest_are_committed_again_without_training(
    make_config, checkpoint, recorder, monkeypatch
):
    config = make_config(seeds=[1])
    finetune(config, checkpoint, track=recorder)
    directory = scores_directory(config, checkpoint)
    before = read_manifest(directory)
    (directory / "manifest.json").write_bytes(b"{")
    trained = count_trainings(monkeypatch)
    finetune(config, checkpoint, track=recorder)
    assert trained == []
    assert read_manifest(directory).fingerprint == before.fingerprint


def test_other_settings_are_refused_and_replacing_keeps_unchanged_trainings(
    make_config, checkpoint, recorder, monkeypatch
):
    finetune(make_config(), checkpoint, track=recorder)
    wider = make_config(seeds=[1, 2, 3])
    with pytest.raises(ConfigError, match=r"seeds was \[1, 2\], is \[1, 2, 3\]"):
        finetune(wider, checkpoint, track=recorder)
    trained = count_trainings(monkeypatch)
    scores = finetune(wider, checkpoint, replace=True, track=recorder)
    assert trained == [3]
    assert [score.seed for score in scores] == [1, 2, 3]


def test_metrics_are_tracked_under_the_task_and_tied_to_the_checkpoint(make_config, checkpoint, recorder):
    (score, _) = finetune(make_config(seeds=[1], compare_random=True), checkpoint, track=recorder)
    pretrained, random = recorder.runs
    assert pretrained.name == "small/tiny@5/reviews-pretrained-1"
    assert pretrained.tags["cloze.reference"] == "tiny@5"
    assert ({"reviews/accuracy": score.value}, 24, "m-1") in pretrained.metrics
    assert {model_id for _, _, model_id in random.metrics} == {None}
    assert random.tags["cloze.reference"] == ""


def test_saved_weights_give_the_saved_predictions(make_config, checkpoint, recorder):
    from safetensors.torch import load_file

    from models.classifiers import SequenceClassifier

    config = make_config(seeds=[1], save_models=True)
    finetune(config, checkpoint, track=recorder)
    directory = scores_directory(config, checkpoint)
    model = SequenceClassifier(checkpoint.model, 2).eval()
    model.load_state_dict(load_file(directory / "model-reviews-pretrained-1.safetensors"))
    workload = make_workload(config, checkpoint)
    sequences = sequence_format(workload.model, workload.tokenizer)
    encoded = encode_examples(workload.tokenizer, sequences, workload.tasks["reviews"].evaluation[:1], 16)
    with torch.no_grad():
        logits = model(torch.from_numpy(encoded.input_ids.values)[None])[0]
    lines = (directory / "predictions-reviews-pretrained-1.jsonl").read_bytes().splitlines()
    torch.testing.assert_close(logits, torch.tensor(orjson.loads(lines[0])["logits"]))


def test_network_without_a_checkpoint_comes_from_scratch(make_config, tokenizer_path, recorder):
    model = {"num_layers": 1, "hidden_size": 32, "num_heads": 2, "intermediate_size": 64, "max_positions": 32}
    config = make_config(seeds=[1], scratch={"model": model, "tokenizer": tokenizer_path})
    (score,) = finetune(config, None, track=recorder)
    assert (score.initial, score.reference) == ("random", None)
    assert scores_directory(config, None).name == "random"


def test_neither_checkpoint_nor_scratch_is_an_error(make_config):
    with pytest.raises(ConfigError, match="--from RUN"):
        finetune(make_config(), None)


def test_inputs_longer_than_the_network_are_refused_before_training(make_config, checkpoint):
    with pytest.raises(MismatchError, match=r"knows only 32 positions.\n.*training.max_length=32"):
        finetune(make_config(training={"max_length": 64}), checkpoint)


def test_diverging_training_is_reported_and_its_run_marked_failed(make_config, checkpoint, recorder):
    config = make_config(seeds=[1], training={"epochs": 4, "batch_size": 8, "lr": 1e38, "max_length": 16})
    with pytest.raises(Exception, match="not finite"):
        finetune(config, checkpoint, track=recorder)
    assert recorder.runs[0].status == "FAILED"


class _Trained(list):
    original = None


def count_trainings(monkeypatch, die_in: int | None = None) -> _Trained:
    """The seeds that are trained from now on; training number `die_in` is interrupted half-way."""
    trained = _Trained()
    trained.original = trials.train

    def train(accelerator, model, task, settings, seed, *, callbacks, **others):
        trained.append(seed)

        def interrupt(report):
            raise KeyboardInterrupt

        if len(trained) == die_in:
            callbacks = dataclasses.replace(callbacks, on_epoch=interrupt)
        return trained.original(accelerator, model, task, settings, seed, callbacks=callbacks, **others)

    monkeypatch.setattr(trials, "train", train)
    return trained
