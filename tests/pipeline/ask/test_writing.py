"""Masks are filled and texts written as by `transformers`; checkpoints of cloze are asked as they were pre-trained."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from cluster.artefacts.errors import ConfigError, MismatchError
from models.config import TransformerConfig
from models.electra import Electra
from models.generation.config import GenerationConfig
from models.language_models import CausalLanguageModel, MaskedLanguageModel, SequenceToSequence
from pipeline.ask.prompting.networks import load_language_model
from pipeline.ask.prompting.prompter import Prompter, Template
from pipeline.ask.prompting.writing import fill, write
from pipeline.objectives.rtd import ReplacedTokenDetection, generator_config
from tests.pipeline.ask.conftest import BERT, NOWHERE, checkpoint, wordpiece
from tests.pipeline.command import invoke

TEXT = "the {} of France is Paris."
PROMPT = "the film was"
SHAPE: dict[str, Any] = {"num_layers": 2, "hidden_size": 16, "num_heads": 2, "intermediate_size": 32}
CONFIG = TransformerConfig(vocab_size=400, max_positions=48, **SHAPE)


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
    ("kind", "text", "top", "remedy"),
    [
        ("bert", "no mask here", 5, None),
        ("bert", "play " * 100 + "[MASK]", 5, None),
        ("bert", "broken \udcff [MASK]", 5, None),
        ("bart", "[MASK]", 100_000, "--top 64"),
        ("t5", "[MASK] " * 5, 5, "extra_id_4"),
        ("gpt2", "[MASK]", 5, "cloze generate"),
    ],
)
def test_what_cannot_be_filled_is_refused(writer, kind, text, top, remedy):
    with pytest.raises((ConfigError, MismatchError), match=remedy):
        fill(writer(kind), text, top)


def test_networks_that_predict_no_tokens_are_refused(tmp_path: Path, directory_of):
    config = transformers.BertConfig(vocab_size=wordpiece(tmp_path), **BERT)
    transformers.BertForSequenceClassification(config).save_pretrained(tmp_path)
    for directory, named in (
        (tmp_path, "sequence_classification"),
        (directory_of("elmo"), "cloze neighbors"),
    ):
        with pytest.raises(MismatchError, match=named):
            load_language_model(str(directory), NOWHERE)


def test_fill_prints_a_table_or_json(directory_of):
    arguments = ["fill", TEXT.format("[z]"), "--from", directory_of("bert"), "--top", 3]
    assert "probability" in invoke(*arguments).stdout
    found = json.loads(invoke(*arguments, "--json").stdout)
    assert (len(found["masks"][0]), len(found["texts"])) == (3, 3)


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


def test_generate_prints_the_text_or_json_and_draws_by_the_seed(directory_of):
    arguments = ["generate", PROMPT, "--from", directory_of("gpt2"), "--max-new-tokens", 16]
    assert invoke(*arguments).stdout.startswith(PROMPT)
    sampled = [*arguments, "--top-k", 100, "--top-p", 0.9, "--num-texts", 2, "--json", "--seed"]
    one, same, other = (json.loads(invoke(*sampled, seed).stdout)["texts"] for seed in (1, 1, 2))
    assert len(one) == 2
    assert one == same != other
    assert isinstance(invoke(*arguments, "--temperature", 0).exception, ConfigError)


def loaded(directory: Path, model: Any, objective: str):
    return load_language_model(str(checkpoint(directory, model, objective)), NOWHERE)


def test_the_space_before_a_mask_is_part_of_the_hidden_word(tmp_path: Path):
    network = loaded(tmp_path, MaskedLanguageModel(CONFIG, pair="nsp"), "mlm")
    ids = network.tokenizer.encode(network.tokenizer.with_masks("the [MASK] was great")).ids
    assert [network.tokenizer.shown(token) for token in ids] == ["the", "<mask>", " was", " great"]
    assert len(fill(network, "the [MASK] was great").masks[0]) == 5


def test_the_generator_of_an_electra_checkpoint_fills_masks(tmp_path: Path):
    shape = generator_config(ReplacedTokenDetection().generator, CONFIG)
    electra = Electra(CONFIG, shape)
    network = loaded(tmp_path, electra, "rtd")
    assert network.config == shape
    ids = torch.tensor([[0, 7, 4, 9, 2]])
    expected = electra.eval().generator.logits(ids)
    torch.testing.assert_close(network.model.logits(ids.to(network.device)).cpu(), expected)


@pytest.mark.parametrize(("objective", "both_ways"), [("clm", False), ("prefix_lm", True)])
def test_a_prompt_begins_with_the_first_token_and_is_read_as_in_training(
    objective: str, both_ways: bool, tmp_path: Path
):
    model = CausalLanguageModel(replace(CONFIG, network="decoder"))
    network = loaded(tmp_path, model, objective)
    assert network.reads_both_ways == both_ways
    prompter = Prompter(network, Template("[x] It was [z]"), ("great", "bad"), max_length=48)
    (question,) = prompter.questions("film", None, 0)
    assert question.ids[0] == 0
    assert question.prefix == (question.places[0] + 1 if both_ways else 0)
    written = write(network, "the film", GenerationConfig(max_new_tokens=4))
    ids = torch.tensor([[0, *network.tokenizer.encode("the film").ids]])
    prefixes = torch.tensor([ids.shape[1]]) if both_ways else None
    best = model.eval().logits(ids, prefix_lengths=prefixes)[0, -1].argmax()
    assert written[0].tokens[0] == int(best)


def test_an_encoder_decoder_of_cloze_writes(tmp_path: Path):
    network = loaded(
        tmp_path, SequenceToSequence(replace(CONFIG, network="encoder_decoder")), "bart_denoising"
    )
    assert len(fill(network, "the [MASK] was", 2).texts) == 2
    assert write(network, "the film", GenerationConfig(max_new_tokens=4))[0].tokens[0] == 0
