"""Scores and predictions of one task of every form, fine-tuned by the command line from small random networks."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson
import yaml
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, processors

from models.config import TransformerConfig
from models.hf.directory import save_hf_directory
from models.hf.family import TokenIds
from models.initialization import init_weights
from models.language_models import MaskedLanguageModel, SequenceToSequence
from pipeline.tune.config import FinetuneConfig
from pipeline.tune.forms import FORMS
from tests.golden.losses import DETERMINISTIC
from tests.pipeline.tune.test_acts_as_scored import ROWS as ROWS_OF_EVERY_FORM

SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "en_XX", "de_DE"]
WORDS = ["film", "good", "bad", "plot", "the", "a", "was", "very", "one", "two", "three", "User", "Assistant"]
SHAPE: dict[str, Any] = {"vocab_size": 24, "num_layers": 1, "hidden_size": 32, "num_heads": 2}
SHAPE |= {"intermediate_size": 64, "max_positions": 48}
ROWS = [row | {"messages": row["messages"][-2:]} for row in ROWS_OF_EVERY_FORM]
"""Chats without a system's message."""
FILES = {"train": "rows.jsonl", "evaluation": "rows.jsonl"}
LINES = {"train_source": "source", "train_target": "target", "source": "source", "target": "target"}
BEAMS = {"max_target_length": 8, "num_beams": 3, "length_penalty": 2.0, "no_repeat_ngram_size": 2}
TASKS: dict[str, dict[str, dict[str, Any]]] = {
    "RoBERTa": {
        "labels": FILES | {"kind": "rows_classification"},
        "pairs": FILES | {"kind": "rows_classification", "columns": {"text_b": "text_b"}},
        "numbers": FILES | {"kind": "rows_regression", "columns": {"label": "number"}},
        "tags": FILES | {"kind": "rows_tags"},
        "choices": FILES | {"kind": "rows_choices", "columns": {"label": "right"}},
        "spans": FILES | {"kind": "rows_spans", "max_query_length": 9},
    },
    "mBART": {
        "summaries": FILES | BEAMS | {"kind": "rows_generation", "min_target_length": 3},
        "translations": LINES
        | BEAMS
        | {"kind": "translation", "language": "en_XX", "target_language": "de_DE"},
        "chats": FILES | {"kind": "instructions", "write_responses": True, "max_response_length": 8},
    },
}
"""By family of networks, a task of every form that it carries."""


def values(directory: Path) -> dict[str, Any]:
    """By task, its metrics and every prediction."""
    (directory / "rows.jsonl").write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in ROWS))
    for name in ("source", "target"):
        (directory / name).write_text("".join(row[name] + "\n" for row in ROWS), encoding="utf-8")
    every = {name: task for tasks in TASKS.values() for name, task in tasks.items()}
    trials = FinetuneConfig.model_validate({"name": "forms", "tasks": every})
    assert {task.form for task in trials.tasks.values()} == FORMS.keys(), "every form has a task here"
    found: dict[str, Any] = {}
    for family, tasks in TASKS.items():
        _write_network(directory / family, family)
        found |= _fine_tune(directory, family, tasks)
    return found


def _write_network(directory: Path, family: str) -> None:
    """A network of some words whose weights are large enough for its outputs to depend on its texts."""
    if family == "mBART":
        shape = TransformerConfig(**SHAPE, network="encoder_decoder", norm="pre")
        network = SequenceToSequence(shape)
    else:
        shape = TransformerConfig(**SHAPE)
        network = MaskedLanguageModel(shape)
    init_weights(network, seed=7)
    larger = {n: tensor * (8 if tensor.dim() > 1 else 1) for n, tensor in network.state_dict().items()}
    save_hf_directory(directory, larger, shape, TokenIds(pad=1, bos=0, eos=2), family=family)
    vocabulary = {word: number for number, word in enumerate([*SPECIAL, *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens([AddedToken(token) for token in ("<s>", "<pad>", "</s>")])
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    tokenizer.save(str(directory / "tokenizer.json"))


def _fine_tune(directory: Path, family: str, tasks: Mapping[str, Any]) -> dict[str, Any]:
    path = directory / f"{family}.yaml"
    settings = {
        "name": family.lower(),
        "out": "scores",
        "tasks": tasks,
        "training": {"epochs": 10, "batch_size": 4, "lr": 3e-3, "max_length": 24},
        "seeds": [1],
        "num_threads": 1,
    }
    path.write_text(yaml.safe_dump(settings), encoding="utf-8")
    command = [sys.executable, "-m", "pipeline.cli", "finetune", path.name, "--from", f"./{family}"]
    done = subprocess.run(
        command, cwd=directory, env=os.environ | DETERMINISTIC, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-4000:]
    (file,) = directory.glob(f"scores/{family.lower()}/**/scores.json")
    metrics = {score["task"]: score["metrics"] for score in orjson.loads(file.read_bytes())["scores"]}
    found = {}
    for task in tasks:
        lines = file.with_name(f"predictions-{task}-pretrained-1.jsonl").read_bytes().splitlines()
        predictions = [less_their_largest(orjson.loads(line)) for line in lines]
        found[task] = {"metrics": metrics[task], "predictions": predictions}
    return found


def less_their_largest(prediction: dict[str, Any]) -> dict[str, Any]:
    """A prediction with the scores of choices and spans less their largest.

    A softmax takes these scores together, so that the loss does not depend on the bias that they share: its gradient is
    rounding alone, from which Adam makes steps that differ between processors.
    """
    if "scores" in prediction:
        largest = max(prediction["scores"])
        return prediction | {"scores": [score - largest for score in prediction["scores"]]}
    if "n_best" in prediction:
        largest = max(each["score"] for each in prediction["n_best"])
        return prediction | {
            "n_best": [each | {"score": each["score"] - largest} for each in prediction["n_best"]]
        }
    return prediction
