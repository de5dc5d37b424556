"""An export acts as the network was scored: from texts, by pipelines and `generate` without an argument, in batches of
texts of unequal lengths. Every family, every form."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, processors

from models.config import TransformerConfig
from models.hf.directory import save_hf_directory
from models.hf.family import TokenIds
from pipeline.checkpoint.references import resolve_model
from pipeline.export.formats import Export
from pipeline.tasks.forms import Example
from pipeline.tasks.tokenizer import TextTokenizer, sequence_format
from pipeline.tune.encoding import encode_examples
from pipeline.tune.export import export
from pipeline.tune.run import finetune
from pipeline.tune.trials import scores_directory
from tests.models.families import SMALL
from tests.models.materials import LANGUAGE_MODELS
from tests.pipeline.tune.conftest import MODEL, Recorder, config_in, enlarged, predictions

WORDS = [
    *("film", "good", "bad", "plot", "the", "a", "was", "very", "one", "two", "three"),
    *("User", "System", "Assistant", "TL", "DR", ";", ":", "en_XX", "de_DE"),
]
FAMILIES: dict[str, Mapping[str, Any]] = {
    # Outputs depend on texts as well in all of them.
    **{name: fields | {"initializer": "normal", "position_std": None} for name, fields in SMALL.items()},
    "RoBERTa-PreLayerNorm": {"norm": "pre"},
    # It has one special token for everything, and none to pad with.
    "GPT-2 of OpenAI": SMALL["GPT-2"] | {"initializer": "normal", "vocab_size": len(WORDS) + 2},
}
ENCODERS = [name for name, fields in FAMILIES.items() if "network" not in fields]
FORMS = {
    **dict.fromkeys(("labels", "pairs"), (*ENCODERS, "GPT-2", "GPT-2 of OpenAI", "LLaMA", "BART", "T5")),
    "numbers": [*ENCODERS, "GPT-2", "LLaMA", "BART", "T5"],
    "tags": [*ENCODERS, "GPT-2", "LLaMA"],
    "choices": ENCODERS,
    "spans": [*ENCODERS, "BART", "mBART", "T5"],
    **dict.fromkeys(("summaries", "chats"), ("GPT-2", "LLaMA", "BART", "T5")),
    "translations": ["mBART"],
}
"""By form, the families that carry it."""
TEXTS = [" ".join(WORDS[(7 * n + 5 * k) % 11] for k in range(1 + 3 * n % 8)) for n in range(8)]
ROWS = [
    {
        "text": text,
        "text_b": TEXTS[-1 - n],
        "label": ("bad", "fine", "good")[n % 3],
        "number": 4.5 - n,
        "tokens": text.split(),
        "tags": ["AB"[len(word) % 2] for word in text.split()],
        "question": TEXTS[-1 - n],
        "choices": [TEXTS[k] for k in (n, -1 - n, 3)],
        "right": n % 3,
        "context": text,
        "answers": text.split()[-1],
        "source": text,
        "target": "good film was good",
        "messages": [
            *([{"role": "system", "content": "very good"}] if n % 2 else []),
            {"role": "user", "content": text},
            {"role": "assistant", "content": "good film"},
        ],
    }
    for n, text in enumerate(TEXTS)
]
BEAMS = {"num_beams": 3, "length_penalty": 2.0, "no_repeat_ngram_size": 2, "label_smoothing": 0.0}
TASKS: dict[str, dict[str, Any]] = {
    "labels": {"kind": "rows_classification"},
    "pairs": {"kind": "rows_classification", "columns": {"text_b": "text_b"}},
    "numbers": {"kind": "rows_regression", "columns": {"label": "number"}},
    "tags": {"kind": "rows_tags"},
    "choices": {"kind": "rows_choices", "columns": {"label": "right"}},
    "spans": {"kind": "rows_spans", "max_query_length": 9},
    "summaries": {"kind": "rows_generation", "max_target_length": 8, "min_target_length": 3, **BEAMS},
    "translations": {"kind": "translation", "max_target_length": 8, **BEAMS},
    "chats": {"kind": "instructions", "write_responses": True, "max_response_length": 8},
}


def write_tokenizer(path: Path, specials: tuple[str, ...]) -> Path:
    """Words, with the template that tokenizers trained here have, and special tokens of languages."""
    vocabulary = {word: n for n, word in enumerate([*specials, "<unk>", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens([AddedToken(token) for token in specials])
    if len(specials) > 1:
        tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    tokenizer.save(str(path))
    return path


def hf_name(family: str) -> str:
    return family.partition(" of ")[0]


def checkpoint_of(folder: Path, family: str):
    """A network whose weights are large enough for its outputs to depend on its texts."""
    shape: TransformerConfig = dataclasses.replace(MODEL, max_positions=48, **FAMILIES[family])
    network = enlarged(LANGUAGE_MODELS[shape.network](shape), 8)
    single = family != hf_name(family)
    ids = TokenIds(pad=0, bos=0, eos=0) if single else TokenIds(pad=1, bos=0, eos=2)
    save_hf_directory(folder / "start", network.state_dict(), shape, ids, family=hf_name(family))
    specials = ("<|endoftext|>",) if single else ("<s>", "<pad>", "</s>")
    write_tokenizer(folder / "start/tokenizer.json", specials)
    return resolve_model(str(folder / "start"), folder)


@pytest.fixture(scope="module")
def scored(tmp_path_factory):
    """Makes the scores of a family, once."""
    return cache(lambda family, rank=None: scores_of(tmp_path_factory.mktemp("scores"), family, rank))


def scores_of(folder: Path, family: str, rank: int | None) -> Path:
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    for name in ("source", "target"):
        (folder / name).write_text("".join(row[name] + "\n" for row in ROWS))
    files = {"train": folder / "rows.jsonl", "evaluation": folder / "rows.jsonl"}
    lines = {f"{split}{side}": folder / side for split in ("", "train_") for side in ("source", "target")}
    languages = {"language": "en_XX", "target_language": "de_DE"}
    tasks = {
        form: TASKS[form] | (lines | languages if form == "translations" else files)
        for form, families in FORMS.items()
        if family in families
    }
    training: dict[str, Any] = {"epochs": 1, "batch_size": 4, "lr": 1e-3, "max_length": 24}
    if rank is not None:
        training["peft"] = {"kind": "lora", "rank": rank, "alpha": 8.0}
    config = config_in(folder, tasks=tasks, training=training, seeds=[1], save_models=True)
    start = checkpoint_of(folder, family)
    with Recorder():
        finetune(config, start)
    return scores_directory(config, start)


def check_labels(made, found):
    inputs = [
        {"text": row["text"], "text_pair": row["text_b"]} if "text_b" in line else row["text"]
        for row, line in zip(ROWS, found, strict=True)
    ]
    for each, line in zip(pipe(made, "text-classification")(inputs), found, strict=True):
        if "logits" in line:
            right = torch.tensor(line["logits"]).softmax(0).max()
            assert each == {"label": line["prediction"], "score": pytest.approx(float(right), abs=1e-4)}
        else:
            assert each["score"] == pytest.approx(line["prediction"], abs=1e-4)


def pipe(made: Export, kind: str, **arguments: Any) -> Any:
    make: Any = transformers.pipeline
    return make(kind, model=str(made.directory), batch_size=len(ROWS), **arguments)


def check_tags(made, found):
    inputs = [row["text"] for row in ROWS]
    tagged = pipe(made, "token-classification")(inputs)
    assert [[word["entity"] for word in words] for words in tagged] == [line["predictions"] for line in found]


def read(made: Export) -> tuple[Any, Any]:
    """The network and the tokenizer, by the class that the export names."""
    library, _, name = made.auto_class.rpartition(".")
    model = getattr(peft if library else transformers, name).from_pretrained(made.directory).eval()
    return model, transformers.AutoTokenizer.from_pretrained(made.directory)


@torch.no_grad()
def check_choices(made, found):
    model, tokenizer = read(made)
    pairs = [(row["question"], choice) for row in ROWS for choice in row["choices"]]
    inputs = tokenizer(*map(list, zip(*pairs, strict=True)), padding=True, return_tensors="pt")
    logits = model(**{name: tensor.view(len(ROWS), 3, -1) for name, tensor in inputs.items()}).logits
    torch.testing.assert_close(logits, torch.tensor([line["scores"] for line in found]), atol=1e-4, rtol=1e-4)


@torch.no_grad()
def check_spans(made, found):
    model, tokenizer = read(made)
    texts = [row["question"] for row in ROWS], [row["context"] for row in ROWS]
    inputs = tokenizer(*texts, padding=True, return_tensors="pt")
    outputs = model(**inputs)
    for n, line in enumerate(found):
        places = [k for k, side in enumerate(inputs.sequence_ids(n)) if side == 1]
        first, last = outputs.start_logits[n], outputs.end_logits[n]
        best = max(
            ((a, b) for a in places for b in places if a <= b),
            key=lambda at: float(first[at[0]] + last[at[1]]),
        )
        start, stop = (inputs.token_to_chars(n, place)[side] for side, place in enumerate(best))
        assert ROWS[n]["context"][start:stop] == line["prediction"]


def check_texts(made, found):
    sources = [row["source"] for row in ROWS]
    inputs = read(made)[1](sources, padding=True, return_tensors="pt")
    check_written(made, inputs, found)
    if made.auto_class.endswith("CausalLM"):
        piped = pipe(made, "text-generation", return_full_text=False)(sources)
        assert [each[0]["generated_text"] for each in piped] == [line["prediction"] for line in found]


def check_chats(made, found):
    chats = [row["messages"][:-1] for row in ROWS]
    settings = {"add_generation_prompt": True, "padding": True, "return_dict": True, "return_tensors": "pt"}
    check_written(made, read(made)[1].apply_chat_template(chats, **settings), found)
    if made.auto_class.endswith("CausalLM"):
        piped = pipe(made, "text-generation")(chats)
        answers = [each[0]["generated_text"][-1]["content"] for each in piped]
        assert answers == [line["prediction"] for line in found]


def check_written(made, inputs, found):
    model, tokenizer = read(made)
    written = model.generate(**inputs)
    if not model.config.is_encoder_decoder:
        written = written[:, inputs["input_ids"].shape[1] :]
    assert tokenizer.batch_decode(written, skip_special_tokens=True) == [line["prediction"] for line in found]


CHECKS = {
    **dict.fromkeys(("labels", "pairs", "numbers"), check_labels),
    "tags": check_tags,
    "choices": check_choices,
    "spans": check_spans,
    **dict.fromkeys(("summaries", "translations"), check_texts),
    "chats": check_chats,
}


def check_export(scores: Path, form: str, folder: Path, family: str, *, peft: bool = False) -> Export:
    trial = f"{form}-pretrained-1"
    made = export(f"{scores}@{trial}", folder / "export", runs_dir=folder, family=family, peft=peft)
    CHECKS[form](made, predictions(scores, trial))
    return made


@pytest.mark.parametrize(
    ("family", "form"), [(family, form) for family in FAMILIES for form in FORMS if family in FORMS[form]]
)
def test_texts_give_what_was_scored(family, form, scored, tmp_path):
    check_export(scored(family), form, tmp_path, hf_name(family))


@pytest.mark.parametrize(
    ("family", "form", "texts"),
    [
        ("BERT", "pairs", (" ".join(WORDS[:11] * 2), " ".join(WORDS[:12] * 2))),
        ("BART", "summaries", (" ".join(WORDS[:11] * 3), None)),
        ("T5", "summaries", (" ".join(WORDS[:11] * 3), None)),
    ],
    ids=["BERT", "BART", "T5"],
)
def test_longer_texts_are_cut_as_they_were_when_scored(family, form, texts, scored, tmp_path):
    scores = scored(family)
    export(f"{scores}@{form}-pretrained-1", tmp_path / "out", runs_dir=tmp_path)
    cut = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")(*texts, truncation=True)["input_ids"]
    assert len(cut) == 24
    tokenizer = TextTokenizer(scores / "tokenizer.json")
    around = sequence_format(dataclasses.replace(MODEL, **FAMILIES[family]), tokenizer)
    assert cut == encode_examples(tokenizer, around, [Example("", *texts, 0)], 24).input_ids[0].tolist()


@pytest.mark.parametrize(
    ("family", "form", "auto_class"),
    [
        ("BERT", "labels", "peft.AutoPeftModelForSequenceClassification"),
        ("BERT", "numbers", "peft.AutoPeftModelForSequenceClassification"),
        ("BERT", "tags", "peft.AutoPeftModelForTokenClassification"),
        ("BERT", "choices", "peft.AutoPeftModel"),
        ("BERT", "spans", "peft.AutoPeftModel"),
        ("BERT", "pairs", "peft.AutoPeftModelForSequenceClassification"),
        ("RoBERTa", "spans", "peft.AutoPeftModelForQuestionAnswering"),
        ("GPT-2", "labels", "peft.AutoPeftModelForSequenceClassification"),
        ("GPT-2", "summaries", "peft.AutoPeftModelForCausalLM"),
        ("GPT-2", "chats", "peft.AutoPeftModelForCausalLM"),
        ("T5", "summaries", "peft.AutoPeftModelForSeq2SeqLM"),
        # Merged with its base.
        ("RoBERTa", "labels", "AutoModelForSequenceClassification"),
        ("GPT-2", "chats", "AutoModelForCausalLM"),
    ],
)
def test_adapter_over_the_base_that_it_names_or_merged_gives_what_was_scored(
    family, form, auto_class, scored, tmp_path
):
    peft = auto_class.startswith("peft.")
    assert check_export(scored(family, 2), form, tmp_path, family, peft=peft).auto_class == auto_class
