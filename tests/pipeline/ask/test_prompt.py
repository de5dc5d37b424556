"""Networks of every kind answer as their scores say, and fill masks and write texts as `transformers` does."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from cluster.artefacts.errors import ConfigError, MismatchError
from models.config import TransformerConfig
from models.electra import Electra
from models.generation.config import GenerationConfig
from models.language_models import CausalLanguageModel, MaskedLanguageModel, SequenceToSequence
from pipeline.ask.config import PromptConfig
from pipeline.ask.prompting.networks import load_language_model
from pipeline.ask.prompting.prompter import Prompter, Template
from pipeline.ask.prompting.run import calibrated, draw_demonstrations, prior, prompt_task
from pipeline.ask.prompting.writing import fill, write
from pipeline.config.loading import validate
from pipeline.objectives.rtd import ReplacedTokenDetection, generator_config
from pipeline.tasks.forms import Example
from tests.pipeline.ask.conftest import BERT, KINDS, NOWHERE, checkpoint, wordpiece
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
