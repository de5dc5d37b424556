"""Masks are filled as `transformers` fills them, by every network that can, and refused in words by the others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import transformers
from typer.testing import CliRunner

from cluster.artefacts.errors import ClozeError, ConfigError, MismatchError
from pipeline.ask.prompting.filling import fill
from pipeline.ask.prompting.networks import load_language_model
from pipeline.commands.verbs import app
from tests.pipeline.ask.prompting import networks_of_transformers as theirs

TEXT = "the {} of France is Paris."
NOWHERE = Path("no-runs")


@pytest.mark.parametrize("make", [theirs.bert, theirs.roberta, theirs.electra_generator])
def test_predictions_equal_the_pipeline_of_transformers(make, tmp_path: Path):
    directory = make(tmp_path / "model")
    network = load_language_model(str(directory), NOWHERE)
    pipe: Any = transformers.pipeline("fill-mask", model=str(directory), tokenizer=str(directory))
    expected = pipe(TEXT.format(network.tokenizer.mask), top_k=7)
    found = fill(network, TEXT.format("[MASK]"), 7)
    assert [each.token for each in found.masks[0]] == [each["token"] for each in expected]
    scores = [each["score"] for each in expected]
    assert [each.score for each in found.masks[0]] == pytest.approx(scores, rel=1e-4)
    assert [each.text for each in found.texts] == [each["sequence"] for each in expected]
    text = "they {0} in the {0}"
    expected = pipe(text.format(network.tokenizer.mask), top_k=3)
    found = fill(network, text.format("<mask>"), 3)
    assert [[each.token for each in row] for row in found.masks] == [
        [each["token"] for each in row] for row in expected
    ]
    assert [len(each.parts) for each in found.texts] == [2]


def test_all_ways_to_write_a_mask_mean_the_same(tmp_path: Path):
    network = load_language_model(str(theirs.roberta(tmp_path / "model")), NOWHERE)
    answers = {fill(network, TEXT.format(mark)) for mark in ("[MASK]", "<mask>", "[z]", "<|mask|>")}
    assert len(answers) == 1


def test_encoder_decoders_write_the_texts(tmp_path: Path):
    bart = load_language_model(str(theirs.bart(tmp_path / "bart")), NOWHERE)
    found = fill(bart, TEXT.format("[MASK]"), 2)
    assert (found.masks, len(found.texts)) == ((), 2)
    assert found.texts[0].score >= found.texts[1].score
    t5 = load_language_model(str(theirs.t5(tmp_path / "t5")), NOWHERE)
    found = fill(t5, "they [MASK] in the [MASK].", 2)
    assert all(len(each.parts) == 2 and each.text.startswith("they") for each in found.texts)
    with pytest.raises(ConfigError, match="--top 64"):
        fill(bart, TEXT.format("[MASK]"), 100_000)
    with pytest.raises(MismatchError, match="extra_id_4"):
        fill(t5, "[MASK] " * 5)


def test_decoders_and_classifiers_are_refused_with_the_verb_to_use(tmp_path: Path):
    gpt2 = load_language_model(str(theirs.gpt2(tmp_path / "gpt2")), NOWHERE)
    with pytest.raises(MismatchError, match="cloze generate"):
        fill(gpt2, TEXT.format("[MASK]"))
    tokenizer = theirs.wordpiece(tmp_path / "classifier")
    config = transformers.BertConfig(vocab_size=len(tokenizer), **theirs.SIZES)
    transformers.BertForSequenceClassification(config).save_pretrained(tmp_path / "classifier")
    with pytest.raises(MismatchError, match="sequence_classification, which predicts no tokens"):
        load_language_model(str(tmp_path / "classifier"), NOWHERE)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("no mask here", r"write \[MASK\]"),
        ("", r"write \[MASK\]"),
        ("play " * 100 + "[MASK]", "shorten the text"),
        ("broken \udcff [MASK]", "no Unicode"),
    ],
)
def test_wrong_texts_are_refused_in_words(text: str, message: str, tmp_path: Path):
    network = load_language_model(str(theirs.bert(tmp_path / "model")), NOWHERE)
    with pytest.raises(ClozeError, match=message) as caught:
        fill(network, text)
    assert isinstance(caught.value, ConfigError | MismatchError)


def test_the_verb_prints_a_table_or_json(tmp_path: Path):
    directory = str(theirs.bert(tmp_path / "model"))
    arguments = ["fill", TEXT.format("[z]"), "--from", directory, "--top", "3"]
    shown = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert "probability" in shown.stdout
    found = json.loads(CliRunner().invoke(app, [*arguments, "--json"], catch_exceptions=False).stdout)
    assert len(found["masks"][0]) == 3
    assert len(found["texts"]) == 3
