"""Promises of every form of task: losses, outputs, and networks that cannot carry it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from cluster.artefacts.errors import MismatchError
from models.classifiers import SequenceClassifier
from models.config import ElmoConfig
from models.initialization import init_weights
from pipeline.tasks import TASKS
from pipeline.tasks.forms import ClassificationTaskConfig, TaggedSentence
from pipeline.tasks.tagging import ConllNerConfig
from pipeline.tune.forms.base import EXCERPT_CHARACTERS, excerpt
from pipeline.tune.forms.classification import CLASSIFIERS
from pipeline.tune.forms.tags import ABSENT
from pipeline.tune.run import finetune
from pipeline.tune.trials import PUBLISHED
from tests.pipeline.tasks.excerpts import EXCERPTS, task_of
from tests.pipeline.tune.conftest import MODEL, prepare
from tests.pipeline.tune.samples import UNREAD, prepared_rows

DECODER = dataclasses.replace(MODEL, network="decoder", norm="pre", embedding_norm=False)
ENCODER_DECODER = dataclasses.replace(MODEL, network="encoder_decoder")


@pytest.mark.parametrize(
    ("form", "network"),
    [
        *((form, MODEL) for form in ("classification", "regression", "tags", "spans", "choices")),
        *((form, DECODER) for form in ("classification", "tags", "choices", "generation")),
        *((form, ENCODER_DECODER) for form in ("classification", "choices", "generation")),
    ],
    ids=lambda value: value if isinstance(value, str) else value.network,
)
def test_loss_of_rows_is_the_sum_of_the_losses_of_each(form, network, tokenizer):
    task = prepared_rows(form, tokenizer, network)
    model = task.build().eval()
    init_weights(model, 1)
    with torch.no_grad():
        together, first, second = (
            float(task.loss(model, task.batch(task.train, np.array(rows)))) for rows in ([0, 1], [0], [1])
        )
    assert first != pytest.approx(second)
    assert together == pytest.approx(first + second, rel=1e-5)


def test_questions_may_have_different_numbers_of_choices(tokenizer):
    task = prepared_rows("choices", tokenizer)
    model = task.build().eval()
    with torch.no_grad():
        outputs = task.outputs(model, task.batch(task.evaluation, np.arange(2)))
    assert outputs.shape == (2, 3)
    assert outputs[0, 2] == float("-inf")
    lines = [json.loads(line) for line in task.files(outputs.numpy())["predictions.jsonl"].splitlines()]
    assert [(len(line["scores"]), len(line["choices"])) for line in lines] == [(2, 2), (3, 3)]


def test_loss_of_a_regression_is_the_squared_error_and_its_submission_stays_in_range(tmp_path, tokenizer):
    test = str(EXCERPTS["stsb"].files["train.tsv"]).replace("\tscore", "").replace("\t3.800", "")
    config = task_of(tmp_path, EXCERPTS["stsb"], submit=False)
    (tmp_path / "test.tsv").write_text(test)
    task = prepare(config.model_copy(update={"submit": True}), tokenizer)
    model = SequenceClassifier(MODEL, 1).eval()
    init_weights(model, 1)
    batch = task.batch(task.train, np.arange(1))
    predicted = task.outputs(model, batch).detach()
    assert float(task.loss(model, batch).detach()) == pytest.approx(float((predicted - 3.8).square().sum()))
    (line,) = task.files(np.full((1, 1), 2.5))["predictions.jsonl"].splitlines()
    texts = {"text": "A plane.", "text_b": "A jet."}
    assert json.loads(line) == {"id": "dev-2", "label": 3.8, "prediction": 2.5} | texts
    assert task.submission(np.array([[5.2]])) == {"STS-B.tsv": b"index\tprediction\n0\t5.000\n"}
    assert task.submission(np.array([[-0.1]])) == {"STS-B.tsv": b"index\tprediction\n0\t0.000\n"}


def test_words_that_are_cut_count_as_outside_of_entities(tokenizer):
    rows = (
        TaggedSentence("1", ("good",) * 9, ("B-PER",) * 9),
        TaggedSentence("2", ("the", "film"), ("O", "B-PER")),
    )
    task = prepare(ConllNerConfig(**UNREAD), tokenizer, rows, ("O", "B-PER", "I-PER"), max_length=8)
    assert task.train.predictions.tolist() == [6, 2]
    batch = task.batch(task.train, np.array([1, 0]))
    assert batch.targets["positions"].tolist() == [[1, 2, *[ABSENT] * 7], [1, 2, 3, 4, 5, 6, *[ABSENT] * 3]]
    outputs = np.full((2, 9), ABSENT)
    outputs[0, :6], outputs[1, :2] = 1, [0, 2]
    assert task.tags(outputs) == [["B-PER"] * 6 + ["O"] * 3, ["O", "I-PER"]]
    assert task.measure(outputs)["accuracy"] == 7 / 11


def test_entities_of_a_type_that_training_does_not_have_count_as_missed(tmp_path, tokenizer):
    (tmp_path / "train").write_text("EU B-ORG\na O\n")
    (tmp_path / "dev").write_text("EU B-ORG\na O\nRome B-LOC\n")
    task = prepare(ConllNerConfig(train=tmp_path / "train", evaluation=tmp_path / "dev"), tokenizer)
    assert task.labels == ("O", "B-ORG", "I-ORG")
    assert "B-LOC" in task.notes[0]
    measured = task.measure(np.array([[1, 0, 0]]))
    assert (measured["recall"], measured["precision"]) == (0.5, 1.0)


@pytest.mark.parametrize(
    ("name", "chosen", "expected"),
    [
        ("race", [1, 0, 1, 3], {"accuracy": 0.75, "accuracy_middle": 0.5, "accuracy_high": 1.0}),
        # Three right answers, four judged right, three in common; the second question has one wrong judgement.
        ("multirc", [1, 0, 1, 1, 1], {"f1_answers": 2 * 0.75 / 1.75, "exact_match": 0.5}),
        ("record", [0], {"f1": 1, "exact_match": 1}),
        ("record", [1], {"f1": 2 / 3, "exact_match": 0}),
        ("mnli", [2, 1, 2, 0], {"accuracy_matched": 1.0, "accuracy_mismatched": 0.5}),
    ],
)
def test_official_metrics_of_several_answers_or_sets(tmp_path, name, chosen, expected):
    config = task_of(tmp_path, EXCERPTS[name])
    outputs = np.eye(max(2, max(chosen) + 1))[chosen]
    assert config.measure(config.load().evaluation, outputs) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("kind", "network", "needed"),
    [
        ("squad", ElmoConfig(vocab_size=32), "needs an encoder (BERT"),
        ("squad2", DECODER, "or an encoder-decoder"),  # its first token has read nothing
        ("conll_ner", ENCODER_DECODER, "needs an encoder"),
        ("xsum", MODEL, "needs an encoder-decoder (BART"),
    ],
)
def test_network_that_cannot_carry_a_form_is_refused_before_files_are_read(
    make_config, checkpoint, kind, network, needed
):
    config = make_config(tasks={"own": {"kind": kind, **UNREAD}})
    with pytest.raises(MismatchError) as refused:
        finetune(config, dataclasses.replace(checkpoint, model=network))
    assert f"the network is {PUBLISHED[network.network]}" in str(refused.value)
    assert needed in str(refused.value)


@pytest.mark.parametrize(
    ("task", "network", "max_length", "remedy"),
    [
        ({"kind": "sst2", "path": "unread"}, MODEL, 64, "training.max_length=32"),
        ({"kind": "squad", **UNREAD}, MODEL, 32, "tasks.own.max_query_length"),
        ({"kind": "xsum", **UNREAD, "max_target_length": 32}, ENCODER_DECODER, 16, "max_target_length=31"),
    ],
    ids=["texts", "questions", "summaries"],
)
def test_lengths_that_do_not_fit_the_network_are_refused_with_what_to_type(
    make_config, checkpoint, task, network, max_length, remedy
):
    config = make_config(tasks={"own": task}, training={"max_length": max_length})
    with pytest.raises(MismatchError) as refused:
        finetune(config, dataclasses.replace(checkpoint, model=network))
    assert remedy in refused.value.next_step
    assert not Path(config.out).exists()


def test_every_kind_of_network_that_may_classify_can():
    assert set(CLASSIFIERS) == set(ClassificationTaskConfig.carriers)
    assert {kind for task in TASKS.values() for kind in task.carriers} <= set(PUBLISHED)


@pytest.mark.parametrize("around", [0, 1500, 2999, 4000])
@pytest.mark.parametrize("length", [0, 10, EXCERPT_CHARACTERS, 3000])
def test_long_texts_are_repeated_around_a_character_and_others_whole(length: int, around: int):
    text = "".join(chr(0x4E00 + number) for number in range(length))
    found = excerpt(text, around)
    assert len(found) == min(length, EXCERPT_CHARACTERS)
    assert found in text
    assert not text or text[min(around, length - 1)] in found
