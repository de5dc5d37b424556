"""Decoders continue texts and encoder-decoders answer them, as in `transformers`; draws are a function of the seed."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
import transformers

from cluster.artefacts.errors import MismatchError
from models.generation.config import GenerationConfig
from pipeline.ask.prompting.writing import write
from tests.pipeline.command import invoke

PROMPT = "the film was"


@pytest.mark.parametrize("num_beams", [1, 3])
@pytest.mark.parametrize("kind", ["gpt2", "bart", "t5"])
def test_texts_equal_those_of_transformers(kind, num_beams: int, directory_of, writer):
    directory = directory_of(kind)
    name = "AutoModelForCausalLM" if kind == "gpt2" else "AutoModelForSeq2SeqLM"
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(directory)
    model: Any = getattr(transformers, name).from_pretrained(directory)
    inputs: Any = tokenizer(PROMPT, return_tensors="pt")
    # The tokenizer of T5 begins no text with a special token.
    begin = 1 if kind == "t5" else 0
    inputs = {name: inputs[name][:, begin:] for name in ("input_ids", "attention_mask")}
    with torch.no_grad():
        row = model.generate(**inputs, max_new_tokens=12, num_beams=num_beams, do_sample=False)[0].tolist()
    begins = inputs["input_ids"].shape[1] if kind == "gpt2" else 1
    (found,) = write(writer(kind), PROMPT, GenerationConfig(max_new_tokens=12, num_beams=num_beams))
    assert list(found.tokens) == row[begins:]
    assert found.text.strip() == tokenizer.decode(row[begins:], skip_special_tokens=True).strip()


def test_samples_are_a_function_of_the_seed(writer):
    one, same, other = (
        write(
            writer("gpt2"),
            PROMPT,
            GenerationConfig(max_new_tokens=16, do_sample=True, top_p=0.9, seed=seed),
        )
        for seed in (1, 1, 2)
    )
    assert one == same != other


@pytest.mark.parametrize(
    ("kind", "prompt", "most", "remedy"),
    [
        ("gpt2", PROMPT, 500, "--max-new-tokens"),
        ("gpt2", "film " * 100, 50, "shorten the text"),
        ("bert", PROMPT, 50, "cloze fill"),
    ],
)
def test_what_does_not_fit_is_refused_with_what_does(writer, kind, prompt, most, remedy):
    with pytest.raises(MismatchError, match=remedy):
        write(writer(kind), prompt, GenerationConfig(max_new_tokens=most))


def test_the_verb_prints_the_text_or_json(directory_of):
    arguments = ["generate", PROMPT, "--from", directory_of("gpt2"), "--max-new-tokens", 5]
    assert invoke(*arguments).stdout.startswith(PROMPT)
    sampled = [*arguments, "--top-k", 10, "--seed", 4, "--num-texts", 2, "--json"]
    assert len(json.loads(invoke(*sampled).stdout)["texts"]) == 2
    assert "temperature" in str(invoke(*arguments, "--temperature", 0).exception)
