"""Masks are filled as `transformers` fills them, by every network that can, and refused in words by the others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import transformers

from cluster.artefacts.errors import ClozeError, ConfigError, MismatchError
from pipeline.ask.prompting.networks import load_language_model
from pipeline.ask.prompting.writing import fill
from tests.pipeline.ask import networks
from tests.pipeline.ask.conftest import NOWHERE
from tests.pipeline.command import invoke

TEXT = "the {} of France is Paris."


@pytest.mark.parametrize("kind", ["bert", "roberta", "electra_generator"])
def test_predictions_equal_the_pipeline_of_transformers(kind, directory_of, writer):
    directory, network = str(directory_of(kind)), writer(kind)
    pipe: Any = transformers.pipeline("fill-mask", model=directory, tokenizer=directory)
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


def test_all_ways_to_write_a_mask_mean_the_same(writer):
    answers = {fill(writer("roberta"), TEXT.format(mark)) for mark in ("[MASK]", "<mask>", "[z]", "<|mask|>")}
    assert len(answers) == 1


def test_encoder_decoders_write_the_texts(writer):
    found = fill(writer("bart"), TEXT.format("[MASK]"), 2)
    assert (found.masks, len(found.texts)) == ((), 2)
    assert found.texts[0].score >= found.texts[1].score
    found = fill(writer("t5"), "they [MASK] in the [MASK].", 2)
    assert all(len(each.parts) == 2 and each.text.startswith("they") for each in found.texts)


@pytest.mark.parametrize(
    ("kind", "text", "top", "error", "message"),
    [
        ("bert", "no mask here", 5, ConfigError, r"write \[MASK\]"),
        ("bert", "", 5, ConfigError, r"write \[MASK\]"),
        ("bert", "play " * 100 + "[MASK]", 5, MismatchError, "shorten the text"),
        ("bert", "broken \udcff [MASK]", 5, ClozeError, "no Unicode"),
        ("bart", "[MASK]", 100_000, ConfigError, "--top 64"),
        ("t5", "[MASK] " * 5, 5, MismatchError, "extra_id_4"),
        ("gpt2", "[MASK]", 5, MismatchError, "cloze generate"),
    ],
)
def test_what_cannot_be_filled_is_refused_in_words(writer, kind, text, top, error, message):
    with pytest.raises(error, match=message):
        fill(writer(kind), text, top)


def test_network_that_predicts_no_tokens_is_refused(tmp_path: Path):
    tokenizer = networks.wordpiece(tmp_path)
    config = transformers.BertConfig(vocab_size=len(tokenizer), **networks.SIZES)
    transformers.BertForSequenceClassification(config).save_pretrained(tmp_path)
    with pytest.raises(MismatchError, match="sequence_classification"):
        load_language_model(str(tmp_path), NOWHERE)


def test_the_verb_prints_a_table_or_json(directory_of):
    arguments = ["fill", TEXT.format("[z]"), "--from", directory_of("bert"), "--top", 3]
    assert "probability" in invoke(*arguments).stdout
    found = json.loads(invoke(*arguments, "--json").stdout)
    assert (len(found["masks"][0]), len(found["texts"])) == (3, 3)
