"""Answers are scored as their definition says, by networks of every kind; mistakes are answered in words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from scipy.special import log_softmax

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


def log_probabilities_of(directory: Path, ids: list[int], **more: Any) -> np.ndarray:
    model = transformers.AutoModelForMaskedLM.from_pretrained(directory)
    with torch.no_grad():
        return log_softmax(model(input_ids=torch.tensor([ids]), **more).logits[0].double().numpy(), axis=-1)


@pytest.mark.parametrize("scoring", ["left_to_right", "joint"])
def test_a_masked_answer_of_several_tokens_scores_their_mean(scoring: Any, directory_of, writer):
    directory, network = directory_of("bert"), writer("bert")
    answers = ("great", "partook")
    prompter = Prompter(network, Template("[x] It was [z]."), answers, scoring=scoring, max_length=64)
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    found = prompter.scores(TEXTS, 64)
    for row, phrase in enumerate(PHRASES):
        for label, answer in enumerate(answers):
            targets = tokenizer(answer, add_special_tokens=False).input_ids
            assert (len(targets) > 1) == (answer == "partook")
            ids = tokenizer(f"{phrase} It was {'[MASK]' * len(targets)}.").input_ids
            expected = []
            first = ids.index(tokenizer.mask_token_id)
            for number, target in enumerate(targets):
                expected.append(log_probabilities_of(directory, ids)[first + number, target])
                if scoring == "left_to_right":
                    ids[first + number] = target
            assert found[row, label] == pytest.approx(np.mean(expected), abs=1e-4)


def test_a_decoder_scores_the_continuation(directory_of, writer):
    directory, network = directory_of("gpt2"), writer("gpt2")
    prompter = Prompter(network, Template("[x] It was [z]."), ("great", "terrible"), max_length=64)
    found = prompter.scores(TEXTS, 100)
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    model = transformers.AutoModelForCausalLM.from_pretrained(directory)
    for row, phrase in enumerate(PHRASES):
        for label, answer in enumerate(prompter.answers):
            prompt, targets = tokenizer(f"{phrase} It was").input_ids, tokenizer(f" {answer}").input_ids
            with torch.no_grad():
                logits = model(input_ids=torch.tensor([[*prompt, *targets]])).logits[0].double().numpy()
            scores = log_softmax(logits, axis=-1)
            places = range(len(prompt) - 1, len(prompt) - 1 + len(targets))
            expected = [scores[place, target] for place, target in zip(places, targets, strict=True)]
            assert found[row, label] == pytest.approx(np.mean(expected), abs=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_scores_do_not_depend_on_batches(kind: str, writer):
    network = writer(kind)
    prompter = Prompter(network, Template("[x] It was [z]"), ("great", "terrible"), max_length=64)
    together, alone = prompter.scores(TEXTS, 4096), prompter.scores(TEXTS, 1)
    np.testing.assert_allclose(together, alone, atol=1e-4)
    assert np.isfinite(together).all()


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
