"""Decoders continue texts and encoder-decoders answer them, as in `transformers`; draws are a function of the seed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from typer.testing import CliRunner

from cluster.artefacts.errors import MismatchError
from models.generation.config import GenerationConfig
from pipeline.ask.prompting.networks import load_language_model
from pipeline.ask.prompting.writing import write
from pipeline.commands.verbs import app
from tests.pipeline.ask.prompting import networks_of_transformers as theirs

PROMPT = "the film was"
NOWHERE = Path("no-runs")


@pytest.mark.parametrize("num_beams", [1, 3])
@pytest.mark.parametrize("make", [theirs.gpt2, theirs.bart, theirs.t5])
def test_texts_equal_those_of_transformers(make, num_beams: int, tmp_path: Path):
    directory = make(tmp_path / "model")
    network = load_language_model(str(directory), NOWHERE)
    auto = (
        transformers.AutoModelForSeq2SeqLM if make is not theirs.gpt2 else transformers.AutoModelForCausalLM
    )
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(directory)
    model: Any = auto.from_pretrained(directory)
    inputs: Any = tokenizer(PROMPT, return_tensors="pt")
    if make is theirs.t5:
        # The tokenizer of T5 begins no text with a special token.
        inputs = {name: tensor[:, 1:] for name, tensor in inputs.items()}
    inputs = {name: inputs[name] for name in ("input_ids", "attention_mask")}
    with torch.no_grad():
        row = model.generate(**inputs, max_new_tokens=12, num_beams=num_beams, do_sample=False)[0].tolist()
    begins = inputs["input_ids"].shape[1] if make is theirs.gpt2 else 1
    (found,) = write(network, PROMPT, GenerationConfig(max_new_tokens=12, num_beams=num_beams))
    assert list(found.tokens) == row[begins:]
    assert found.text.strip() == tokenizer.decode(row[begins:], skip_special_tokens=True).strip()


def test_samples_are_a_function_of_the_seed(tmp_path: Path):
    network = load_language_model(str(theirs.gpt2(tmp_path / "model")), NOWHERE)
    drawn = [
        write(network, PROMPT, GenerationConfig(max_new_tokens=16, do_sample=True, top_p=0.9, seed=seed))
        for seed in (1, 1, 2)
    ]
    torch.manual_seed(0)
    assert drawn[0] == drawn[1]
    assert drawn[0] != drawn[2]


def test_what_does_not_fit_is_refused_with_the_number_that_does(tmp_path: Path):
    network = load_language_model(str(theirs.gpt2(tmp_path / "gpt2")), NOWHERE)
    with pytest.raises(MismatchError, match="--max-new-tokens"):
        write(network, PROMPT, GenerationConfig(max_new_tokens=500))
    with pytest.raises(MismatchError, match="shorten the text"):
        write(network, "film " * 100, GenerationConfig())
    masked = load_language_model(str(theirs.bert(tmp_path / "bert")), NOWHERE)
    with pytest.raises(MismatchError, match="cloze fill"):
        write(masked, PROMPT, GenerationConfig())


def test_the_verb_prints_the_text_or_json(tmp_path: Path):
    directory = str(theirs.gpt2(tmp_path / "model"))
    arguments = ["generate", PROMPT, "--from", directory, "--max-new-tokens", "5"]
    assert CliRunner().invoke(app, arguments, catch_exceptions=False).stdout.startswith(PROMPT)
    sampled = [*arguments, "--top-k", "10", "--seed", "4", "--num-texts", "2", "--json"]
    found = json.loads(CliRunner().invoke(app, sampled, catch_exceptions=False).stdout)
    assert len(found["texts"]) == 2
    refused = CliRunner().invoke(app, [*arguments, "--temperature", "0"])
    assert "temperature" in str(refused.exception)
