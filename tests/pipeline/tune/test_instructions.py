"""Instruction tuning: files, template, learned tokens, losses against transformers, and runs up to an export."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from cluster.artefacts.errors import ConfigError, MismatchError
from models.generation.config import GenerationConfig
from models.hf.directory import save_hf_directory
from models.hf.family import TokenIds
from models.language_models import CausalLanguageModel
from pipeline.ask.prompting.networks import load_language_model
from pipeline.ask.prompting.writing import chat_prompt, write
from pipeline.tasks.instructions import ChatTemplate, Conversation, InstructionsConfig, Turn
from pipeline.tasks.tokenizer import TextTokenizer
from pipeline.tune.export import export
from pipeline.tune.forms.conversations import ConversationEncoder
from tests.pipeline.tune import conftest
from tests.pipeline.tune.conftest import enlarged, make_checkpoint, prepare

GPT = dataclasses.replace(conftest.GPT, vocab_size=320, activation="gelu_tanh")
CHATML = ChatTemplate(
    before_system="<|im_start|>system\n",
    after_system="<|im_end|>\n",
    before_user="<|im_start|>user\n",
    after_user="<|im_end|>\n",
    before_assistant="<|im_start|>assistant\n",
    after_assistant="\n",
    special_tokens=("<|im_start|>", "<|im_end|>"),
)
SPECIAL_TOKENS = ["<s>", "<pad>", "</s>", "<|im_start|>", "<|im_end|>"]
CHAT: list[dict[str, Any]] = [
    {"role": "system", "content": "Be short."},
    {"role": "user", "content": " Say blue. "},
    {"role": "assistant", "content": "Blue it is."},
    {"role": "user", "content": "And again,\nplease?"},
    {"role": "assistant", "content": "Blue, 青 und noch einmal."},
]
PAIR = {"prompt": "Say red.", "response": "Red it is."}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> TextTokenizer:
    """A byte-level BPE with the special tokens of ChatML."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=GPT.vocab_size,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator([str(CHAT), str(PAIR), "User:\nSystem:\nAssistant:\n"] * 3, trainer)
    path = tmp_path_factory.mktemp("bpe") / "tokenizer.json"
    made.save(str(path))
    return TextTokenizer(path)


def write_rows(path: Path, *rows: object, start: str = "", end: str = "\n") -> Path:
    text = start + "".join(json.dumps(row, ensure_ascii=False) + end for row in rows)
    path.write_bytes(text.encode())
    return path


def conversation(*contents: str, system: str = "") -> Conversation:
    roles = ("user", "assistant")
    turns = [Turn(roles[number % 2], content) for number, content in enumerate(contents)]
    return Conversation("c", ((Turn("system", system),) if system else ()) + tuple(turns), "f, line 1")


def task_of(tokenizer, *conversations, network=GPT, length=64, **settings) -> Any:
    config = InstructionsConfig(train=Path("unread"), **settings)
    return prepare(config, tokenizer, conversations, network=network, max_length=length)


def test_pairs_and_conversations_are_read_with_byte_order_mark_and_windows_line_ends(tmp_path):
    path = write_rows(tmp_path / "a.jsonl", PAIR, {"messages": CHAT}, start="\ufeff", end="\r\n")
    data = InstructionsConfig(train=path, evaluation=path).load()
    assert data.train[0].turns == (Turn("user", "Say red."), Turn("assistant", "Red it is."))
    assert data.train[1].turns == tuple(Turn(each["role"], each["content"].strip()) for each in CHAT)
    assert [each.id for each in data.train] == ["a-1", "a-2"]


def turns(*roles: str) -> dict:
    return {"messages": [{"role": role, "content": "x"} for role in roles]}


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"prompt": "a"}, "`response`"),
        ({"prompt": "a", "response": " "}, "`response`"),
        ({"text": "a"}, "`messages`.*`prompt`"),
        (turns("user"), "user"),
        (turns("user", "bot"), "turn 2 .*'bot'"),
        (turns("user", "assistant", "assistant"), "turns 2 and 3"),
        (turns("assistant"), "turn 1"),
        (turns("user", "assistant", "system"), "turn 3"),
        ({"messages": [{"role": "user", "content": "\n"}]}, "turn 1"),
        ({"messages": ["hello"]}, "turn 1"),
        ({"messages": []}, "`messages`"),
    ],
)
def test_wrong_row_is_named_with_file_and_line(tmp_path, row, problem):
    path = write_rows(tmp_path / "a.jsonl", PAIR, row)
    with pytest.raises(ConfigError, match=rf"a\.jsonl, line 2: .*{problem}"):
        InstructionsConfig(train=path, evaluation=path).load()


@pytest.mark.parametrize("template", [ChatTemplate(), CHATML])
@pytest.mark.parametrize("count", [1, 3, 5])
def test_ids_are_those_of_apply_chat_template(tokenizer, template, count):
    own: Any = PreTrainedTokenizerFast(
        tokenizer_file=str(tokenizer.path), bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    )
    jinja = template.jinja(begins=True)
    odd = {"role": "user", "content": 'Say "it\'s" {{ red }}\\n'}
    messages = CHAT[:count] if count > 1 else [odd, CHAT[2]]
    read = tuple(Turn(each["role"], each["content"].strip()) for each in messages)
    (encoded,) = ConversationEncoder(tokenizer, template, begins=True).encode([Conversation("c", read)])
    assert encoded.ids.tolist() == own.apply_chat_template(messages, chat_template=jinja)["input_ids"]
    # A prompt is what training saw before the last response.
    prompt = own.apply_chat_template(messages[:-1], chat_template=jinja, add_generation_prompt=True)
    assert encoded.ids[: encoded.responses[-1][0]].tolist() == prompt["input_ids"]


contents = (
    st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)
    .map(str.strip)
    .filter(lambda text: text and not any(name in text for name in SPECIAL_TOKENS))
)


@given(
    st.lists(st.tuples(contents, contents), min_size=1, max_size=4),
    contents,
    st.sampled_from([ChatTemplate(), CHATML]),
)
def test_responses_with_their_ends_are_learned_and_nothing_else(tokenizer, pairs, system, template):
    talk = conversation(*(text for pair in pairs for text in pair), system=system)
    (encoded,) = ConversationEncoder(tokenizer, template, begins=True).encode([talk])
    bare = Tokenizer.from_file(str(tokenizer.path))
    parts = [encoded.ids[slice(*span)] for span in encoded.responses] + [encoded.ids[~encoded.learned]]
    *found, rest = (bare.decode(ids.tolist(), skip_special_tokens=False) for ids in parts)
    assert found == [f"{response}</s>" for _, response in pairs]
    expected = ["<s>", template.before_system, system, template.after_system]
    for prompt, _ in pairs:
        expected += [template.before_user, prompt, template.after_user]
        expected += [template.before_assistant, template.after_assistant]
    assert rest == "".join(expected)


def test_turns_and_templates_that_a_tokenizer_cannot_read_are_refused(tokenizer):
    with pytest.raises(ConfigError, match=r"f, line 1: .*</s>"):
        task_of(tokenizer, conversation("one </s> two", "three"))
    template: dict[str, Any] = {"before_user": "[INST]", "special_tokens": ["[INST]"]}
    with pytest.raises(MismatchError, match=r"special_tokens .*\[INST\]"):
        task_of(tokenizer, conversation("a", "b"), template=template)
    with pytest.raises(ValueError, match="with a space"):
        ChatTemplate(before_assistant="Answer: ")
    with pytest.raises(ValueError, match="no marker"):
        ChatTemplate(special_tokens=("<|user|>",))
    # A marker that is joined with the response.
    bpe = json.loads(tokenizer.path.read_text())
    bpe["model"]["merges"].append([":", "b"])
    bpe["model"]["vocab"][":b"] = 999
    bpe["pre_tokenizer"]["use_regex"] = False
    path = tokenizer.path.with_name("joined.json")
    path.write_text(json.dumps(bpe))
    with pytest.raises(MismatchError, match="':b'"):
        task_of(TextTokenizer(path), conversation("a", "b"), template={"before_assistant": ":"})


def test_packed_conversations_do_not_see_each_other(tokenizer):
    numbers = ("one", "two", "three", "four")
    talks = [conversation(f"Say {n}.", f"{n} it is.", "Again?", "No.") for n in numbers]
    packed, single = (task_of(tokenizer, *talks, length=100, packed=flag) for flag in (True, False))
    assert len(packed.train) < len(single.train) == 4
    model = enlarged(packed.build(), 8)
    rows = np.arange(len(packed.train))
    together = task_gradients(packed, model, rows)
    apart = [task_gradients(single, model, np.array([row])) for row in range(4)]
    for name, gradient in together.items():
        torch.testing.assert_close(gradient, sum(each[name] for each in apart), rtol=1e-4, atol=1e-4)
    found = packed.outputs(model, packed.batch(packed.evaluation, np.arange(4)))
    assert found[:, 1].sum() == packed.train.predictions.sum()
    loss = packed.loss(model, packed.batch(packed.train, rows))
    torch.testing.assert_close(found[:, 0].sum().float(), loss)


def task_gradients(task, model, rows):
    model.zero_grad()
    task.loss(model, task.batch(task.train, rows)).backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def test_loss_is_that_of_transformers_with_ignored_labels(tokenizer, tmp_path):
    talks = [
        conversation("Say blue.", "Blue.", "Again?", "No."),
        conversation("Say red.", "Red it is.", system="S"),
    ]
    task = task_of(tokenizer, *talks, packed=False)
    model = enlarged(task.build(), 2)
    ids = TokenIds(pad=1, bos=0, eos=2)
    save_hf_directory(tmp_path / "gpt2", model.state_dict(), GPT, ids, head="causal_lm")
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "gpt2")
    batch = task.batch(task.train, np.arange(2))
    read, learned = batch.inputs["input_ids"], torch.roll(batch.targets["places"], 1, dims=1)
    labels = read.where(learned, -100)
    expected = theirs(input_ids=read, attention_mask=(read != 1).long(), labels=labels).loss
    mine = task.loss(model, batch) / int(task.train.predictions.sum())
    torch.testing.assert_close(mine, expected, rtol=1e-5, atol=1e-5)


def test_network_learns_to_respond_and_is_asked_from_its_scores_and_from_its_export(
    tmp_path, tune, tokenizer
):
    colours = ("red", "green", "blue")
    rows = [{"prompt": f"Say {colours[n % 3]}.", "response": f"It is {colours[n % 3]}."} for n in range(36)]
    path = write_rows(tmp_path / "train.jsonl", *rows, {"messages": CHAT})
    start = make_checkpoint(tmp_path / "gpt", tokenizer.path, network=CausalLanguageModel(GPT))
    writing = {"write_responses": True, "max_response_length": 16}
    task = {"kind": "instructions", "train": path, "evaluation": path, **writing}
    training = {"epochs": 14, "batch_size": 4, "lr": 1e-2, "max_length": 96, "scored": "last_epoch"}
    tuned = tune(start, tasks={"chat": task}, training=training, save_models=True)
    (score,) = tuned.scores
    assert score.main_metric == "likelihood"
    assert min(score.metrics["exact_match"], score.metrics["rouge1"]) > 0.9
    np.testing.assert_allclose(score.metrics["perplexity"], 1 / score.metrics["likelihood"])
    np.testing.assert_allclose(score.metrics["loss"], np.log(score.metrics["perplexity"]))
    export(str(tuned.directory), tmp_path / "hf", runs_dir=tmp_path)
    for reference in (str(tuned.directory), str(tmp_path / "hf")):
        network = load_language_model(reference, tmp_path)
        prompt = chat_prompt(network, "Say green.")
        (answer,) = write(network, prompt, GenerationConfig(max_new_tokens=16))
        assert answer.text == "It is green."


def test_encoder_decoder_reads_what_is_before_every_response_of_a_conversation(tokenizer):
    bart = dataclasses.replace(GPT, network="encoder_decoder", norm="post", embedding_norm=True)
    talk = conversation("Say blue.", "Blue.", "Again?", "No.")
    task = task_of(tokenizer, talk, network=bart, max_response_length=20)
    assert (len(task.train), task.last.tolist()) == (2, [1])
    texts = tokenizer.texts([task.train.input_ids[1].tolist(), task.train.targets[1].tolist()])
    assert texts == ["User:\nSay blue.\nAssistant:\nBlue.User:\nAgain?\nAssistant:", "No."]


def test_conversations_that_are_cut_or_left_out_are_counted(tokenizer):
    talks = [
        conversation("Say red.", "Red."),
        conversation("a", "long " * 60),
        conversation("long " * 60, "a"),
    ]
    cut, left_out, packed = task_of(tokenizer, *talks).notes[:3]
    assert [note.partition(" con")[0] for note in (cut, left_out, packed)] == ["2 of 3", "1 of 3", "2"]
    with pytest.raises(ConfigError, match=r"training\.max_length"):
        task_of(tokenizer, *talks, length=8)
