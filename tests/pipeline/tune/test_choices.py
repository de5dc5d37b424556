"""Multiple choice: official metrics, a whole training, and questions with fewer choices than others."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from models.initialization import init_weights
from pipeline.tune.forms.base import EXCERPT_CHARACTERS, TaskContext, excerpt
from pipeline.tune.forms.choices import ChoicesTask
from pipeline.tune.run import finetune
from pipeline.tune.settings import TrainingConfig
from pipeline.tune.task import TaskData
from pipeline.tune.tasks.forms import Choices
from pipeline.tune.tasks.superglue import CopaConfig
from pipeline.tune.tokenizer import TextTokenizer
from tests.pipeline.tune.conftest import MODEL, WORDS
from tests.pipeline.tune.excerpts import EXCERPTS, both, objects, task_of, write


@pytest.mark.parametrize(
    ("name", "chosen", "expected"),
    [
        ("race", [1, 0, 1, 3], {"accuracy": 0.75, "accuracy_middle": 0.5, "accuracy_high": 1.0}),
        # Three right answers, four judged right, three in common; the second question has one wrong judgement.
        ("multirc", [1, 0, 1, 1, 1], {"f1_answers": 2 * 0.75 / 1.75, "exact_match": 0.5}),
        ("record", [0], {"f1": 1, "exact_match": 1}),
        ("record", [1], {"f1": 2 / 3, "exact_match": 0}),
    ],
)
def test_official_metrics_of_several_answers(tmp_path, name, chosen, expected):
    config = task_of(tmp_path, EXCERPTS[name])
    outputs = np.eye(max(2, max(chosen) + 1))[chosen]
    assert config.measure(config.load().evaluation, outputs) == pytest.approx(expected)


def write_copa(folder: Path, count: int) -> Path:
    """The right choice holds the word "good"."""
    rows = []
    for number in range(count):
        filler = WORDS[4 + number % 8]
        choices = [f"{filler} good", f"{filler} bad"][:: 1 if number % 3 else -1]
        rows.append(
            {
                "premise": "the film was",
                "choice1": choices[0],
                "choice2": choices[1],
                "question": "cause",
                "label": int(number % 3 == 0),
            }
        )
    write(folder, both(objects(*rows), "train.jsonl", "val.jsonl"))
    return folder


def test_choices_are_learnt(make_config, checkpoint, tmp_path, recorder):
    config = make_config(
        tasks={"copa": {"kind": "copa", "path": write_copa(tmp_path / "COPA", 60)}},
        training={"epochs": 10, "batch_size": 10, "lr": 3e-3, "max_length": 24, "scored": "last_epoch"},
        seeds=[1, 2],
    )
    scores = finetune(config, checkpoint, track=recorder)
    assert [score.value for score in scores] == [1.0, 1.0]


@pytest.mark.parametrize("network", ["encoder", "decoder", "encoder_decoder"])
def test_questions_with_fewer_choices_are_scored_as_by_themselves(tokenizer_path, network):
    examples = (
        Choices("1", (("good", "film"), ("bad", "film plot")), 1),
        Choices("2", (("one", "two"), ("one", "three"), ("a", "the")), 2),
    )
    config = dataclasses.replace(MODEL, network=network, norm="pre" if network == "decoder" else "post")
    task = ChoicesTask(
        TaskContext(
            CopaConfig(path=Path()),
            TaskData(examples, examples, (), ()),
            TrainingConfig(max_length=16),
            config,
            TextTokenizer(tokenizer_path),
        )
    )
    model = task.build().eval()
    init_weights(model, 1)
    with torch.no_grad():
        together = task.outputs(model, task.batch(task.evaluation, np.arange(2)))
        first = task.outputs(model, task.batch(task.evaluation, np.array([0])))
    assert together.shape == (2, 3)
    assert together[0, 2] == float("-inf")
    torch.testing.assert_close(together[:1], first)
    assert task.evaluation.lengths.tolist() == [
        max(task.evaluation.texts.lengths[:2]),
        max(task.evaluation.texts.lengths[2:]),
    ]
    lines = [json.loads(line) for line in task.files(together.numpy())["predictions.jsonl"].splitlines()]
    assert [len(line["scores"]) for line in lines] == [2, 3]
    assert [len(line["choices"]) for line in lines] == [2, 3]


@pytest.mark.parametrize("length", [0, 10, EXCERPT_CHARACTERS])
def test_a_text_that_fits_is_repeated_whole(length: int):
    text = "é" * length
    assert excerpt(text, around=length) == text


@pytest.mark.parametrize("around", [0, 1500, 2999, 4000])
def test_of_a_long_text_the_part_around_a_character_is_repeated(around: int):
    text = "".join(chr(0x4E00 + number) for number in range(3000))
    found = excerpt(text, around)
    assert len(found) == EXCERPT_CHARACTERS
    assert found in text
    assert text[min(around, 2999)] in found
