"""Answers are scored as their definition says, by networks of every kind; mistakes are answered in words."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from cluster.artefacts.errors import ConfigError, MismatchError
from pipeline.ask.config import PromptConfig
from pipeline.ask.prompting.prompter import Prompter, Template
from pipeline.ask.prompting.run import calibrated, draw_demonstrations, prior, prompt_task
from pipeline.config.loading import validate
from pipeline.tasks.forms import Example
from tests.pipeline.ask.conftest import KINDS
from tests.pipeline.command import invoke

PHRASES = ["the film was great", "a bad plot", "they play a long play", "she plays"]
TEXTS = [(phrase, None) for phrase in PHRASES]


@pytest.fixture
def reviews(tmp_path: Path) -> Path:
    """A folder in SST-2's layout."""
    folder = tmp_path / "SST-2"
    folder.mkdir()
    for name, count in (("train", 12), ("dev", 8)):
        lines = [f"{PHRASES[n % 4]} {n}\t{int(n % 3 == 0)}" for n in range(count)]
        (folder / f"{name}.tsv").write_text("\n".join(["sentence\tlabel", *lines]) + "\n", encoding="utf-8")
    return folder


def settings(reviews: Path, **changes: Any) -> PromptConfig:
    plain = {
        "task": {"kind": "sst2", "path": str(reviews)},
        "templates": ["[x] It was [z]", "the film: [x] was [z]"],
        "verbalizers": {"positive": "great", "negative": "terrible"},
        "seeds": [1, 2],
    }
    return validate(PromptConfig, plain | changes, "test")


def score_of(model: Any, ids: list[int], targets: list[int], first: int, **more: Any) -> float:
    """Mean log-probability of targets from a place on, by the loss of `transformers`."""
    labels = [-100] * first + targets
    labels += [-100] * (len(more.get("decoder_input_ids", [ids])[0]) - len(labels))
    with torch.no_grad():
        return -float(model(input_ids=torch.tensor([ids]), labels=torch.tensor([labels]), **more).loss)


@pytest.mark.parametrize("kind", KINDS)
def test_answers_of_several_tokens_score_the_loss_of_transformers_in_any_batch(
    kind: str, directory_of, writer
):
    directory, network, answers = directory_of(kind), writer(kind), ("great", "partook")
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    model = getattr(transformers, KINDS[kind][1]).from_pretrained(directory)
    expected = []
    for phrase, answer in product(PHRASES, answers):
        space = " " * (network.kind != "encoder_decoder")
        targets = tokenizer(space + answer, add_special_tokens=False).input_ids
        assert len(targets) > 1 or answer == "great"
        ids = tokenizer(f"{phrase} It was").input_ids
        more = {}
        if network.kind == "masked":
            ids = tokenizer(f"{phrase} It was {tokenizer.mask_token * len(targets)}").input_ids
            first = ids.index(tokenizer.mask_token_id)
        elif network.kind == "left_to_right":
            ids, first = [*ids, *targets], len(ids)
        else:
            # BART begins what it writes with `<s>`, and the tokenizer of T5 begins no text with it.
            before, ids = ([2, 0], ids) if kind == "bart" else ([1], ids[1:])
            more["decoder_input_ids"] = torch.tensor([[*before, *targets[:-1]]])
            first = len(before) - 1
        expected.append(score_of(model, ids, targets, first, **more))
    prompter = Prompter(network, Template("[x] It was [z]"), answers, scoring="joint", max_length=64)
    for batch_tokens in (4096, 1):
        found = prompter.scores(TEXTS, batch_tokens)
        np.testing.assert_allclose(found.reshape(-1), expected, atol=1e-4)


@pytest.mark.parametrize("kind", ["bert", "roberta", "electra_generator"])
def test_masks_are_filled_from_left_to_right_with_the_answer(kind: str, directory_of, writer):
    directory, answers = directory_of(kind), ("great", "partook")
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    model = getattr(transformers, KINDS[kind][1]).from_pretrained(directory)
    expected = []
    for phrase, answer in product(PHRASES, answers):
        targets = tokenizer(" " + answer, add_special_tokens=False).input_ids
        ids = tokenizer(f"{phrase} It was {tokenizer.mask_token * len(targets)}.").input_ids
        scores = []
        for place, target in enumerate(targets, ids.index(tokenizer.mask_token_id)):
            scores.append(score_of(model, ids, [target], place))
            ids[place] = target
        expected.append(np.mean(scores))
    prompter = Prompter(writer(kind), Template("[x] It was [z]."), answers, max_length=64)
    for batch_tokens in (4096, 1):
        found = prompter.scores(TEXTS, batch_tokens)
        np.testing.assert_allclose(found.reshape(-1), expected, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_a_task_is_scored_with_every_template_and_seed(kind: str, reviews: Path, writer):
    network = writer(kind)
    config = settings(reviews, shots=2, calibrate=True, separator=" ", templates=["[x] was [z]", "[x] [z]"])
    found = prompt_task(config, network)
    assert [(each.template, each.seed) for each in found.scores] == [
        (template, seed) for template in config.templates for seed in (1, 2)
    ]
    assert all(each.metrics.keys() == {"accuracy"} and each.uncalibrated for each in found.scores)
    assert found.majority == {"accuracy": 5 / 8}
    assert prompt_task(config, network) == found


def test_calibration_makes_a_text_without_content_undecided(writer):
    network = writer("gpt2")
    prompter = Prompter(network, Template("[x] It was [z]"), ("great", "terrible"), max_length=64)
    weights = prior(prompter, False, 4096)
    assert weights.sum() == pytest.approx(1)
    even = calibrated(np.log(weights)[None].astype(np.float32), weights)
    assert even[0, 0] == pytest.approx(even[0, 1], abs=1e-5)


def test_demonstrations_are_balanced_and_follow_from_the_seed():
    examples = [Example(str(n), f"text {n}", None, int(n < 4)) for n in range(40)]
    drawn = draw_demonstrations(examples, 2, 6, seed=3)
    assert sorted(each.label for each in drawn) == [0, 0, 0, 1, 1, 1]
    assert drawn == draw_demonstrations(examples, 2, 6, seed=3)
    assert drawn != draw_demonstrations(examples, 2, 6, seed=4)
    with pytest.raises(ConfigError):
        draw_demonstrations(examples, 2, 10, seed=3)


@pytest.mark.parametrize("kind", ["bert", "roberta", "gpt2", "t5"])
def test_long_and_strange_texts_are_cut_to_fit(kind: str, writer):
    network = writer(kind)
    prompter = Prompter(network, Template("[x] [y] It was [z]"), ("great", "terrible"), max_length=32)
    strange = [
        ("film " * 500, "plot"),
        ("[MASK] <mask> [z] [y]", "</s><pad>"),
        ("", ""),
        ("😀é\n\t" * 50, "\x00" * 40),
    ]
    scores = prompter.scores(strange, 512)
    assert np.isfinite(scores).all()
    for texts in strange:
        asked = prompter.questions(*prompter.fitted(*texts), 0)
        assert all(len(question.ids) <= 32 for question in asked)


@pytest.mark.parametrize(
    "changes",
    [
        {"templates": ["It was [z]"]},
        {"templates": ["[x] It was"]},
        {"templates": ["[x] [y] [z]"]},
        {"verbalizers": {"positiv": "great", "negative": "bad"}},
        {"verbalizers": {"positive": "great", "1": "bad"}},
        {"verbalizers": {"positive": "great", "negative": "Great"}},
        {"verbalizers": {"positive": "great", "negative": "漢"}},
        {"verbalizers": {"positive": "great", "negative": "great"}},
        {"shots": 12},
        {"shots": 6, "max_length": 40},
        {"seeds": [1, 1]},
        {"task": {"kind": "stsb", "path": "."}},
    ],
    ids=str,
)
def test_what_cannot_be_asked_is_refused(changes: dict[str, Any], reviews: Path, writer):
    network = writer("bert")
    with pytest.raises((ConfigError, MismatchError)):
        prompt_task(settings(reviews, **changes), network)


def test_a_text_behind_the_answer_is_refused_where_it_would_not_be_seen(reviews: Path, writer):
    config = settings(reviews, templates=["It was [z]: [x]"])
    found = prompt_task(config, writer("bert"))
    assert [each.seed for each in found.scores] == [None], "there is nothing to draw"
    with pytest.raises(ConfigError):
        prompt_task(config, writer("gpt2"))


def test_the_verb_takes_a_kind_or_a_file(reviews: Path, tmp_path: Path, directory_of):
    arguments = ["prompt", "--from", directory_of("bert"), f"task.path={reviews}", "--task", "sst2"]
    arguments += ["--template", "[x] It was [z].", "--verbalizer", "great=1,terrible=0"]
    shown = invoke(*arguments, "--shots", 2).stdout
    assert "majority label" in shown
    assert "[x] It was [z]." in shown, "brackets are no markup"
    assert "seed 3" in shown
    found = json.loads(invoke(*arguments, "--json").stdout)
    assert found["scores"][0]["metrics"]["accuracy"] >= 0
    file = tmp_path / "prompt.yaml"
    file.write_text(
        f"task: {{kind: sst2, path: {reviews}}}\ntemplates: ['[x] It was [z].']\n"
        "verbalizers: {1: great, 0: terrible}\n"
    )
    again = invoke("prompt", "--task", file, "--from", directory_of("bert"), "--json")
    assert json.loads(again.stdout) == found
    assert isinstance(invoke(*arguments, "--verbalizer", "great").exception, ConfigError)
