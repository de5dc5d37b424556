"""Run under `torchrun` by test_processes.py: fine-tunes and reports what this many processes did."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from data_prep.ragged import Ragged
from models.config import TransformerConfig
from pipeline.tune.config import FinetuneConfig
from pipeline.tune.encoding import EncodedExamples
from pipeline.tune.forms.classification import ClassificationTask, token_reader
from pipeline.tune.processes import make_accelerator, on_first
from pipeline.tune.run import finetune
from pipeline.tune.trainer import evaluate, evaluation_loader
from pipeline.tune.trials import scores_directory
from tests.pipeline.tune.conftest import WORDS, Recorder, write_sst2, write_tokenizer

COUNTS = (1, 2, 3, 63, 64, 65, 127, 128, 129, 200)
"""Numbers of evaluation examples around multiples of the evaluation batch and of twice that."""
MODEL = {"num_layers": 1, "hidden_size": 32, "num_heads": 2, "intermediate_size": 64, "max_positions": 32}
TRAINING = {"epochs": 4, "batch_size": 8, "micro_batch_size": 2, "lr": 3e-3, "max_length": 16}


class Echo(torch.nn.Module):
    """Its only logit is the first token, so the result shows which examples were seen."""

    def forward(self, input_ids, attention_mask):
        return input_ids[:, :1].float()


class Rows(ClassificationTask):
    """Rows that are encoded already."""

    def __init__(self, encoded: EncodedExamples) -> None:
        self.evaluation = encoded
        tokenizer: Any = SimpleNamespace(pad_id=0)
        self.read = token_reader(TransformerConfig(), tokenizer)


def gathered(accelerator, count: int) -> int:
    """How many different examples an evaluation of `count` examples returns, each in its place."""
    lengths = 1 + np.arange(count) % 5
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    rows = Ragged(np.repeat(np.arange(count), lengths), offsets)
    encoded = EncodedExamples(rows, None, np.zeros(count, dtype=np.int64))
    task = Rows(encoded)
    logits = evaluate(accelerator, Echo(), task, evaluation_loader(accelerator, task))
    assert logits[:, 0].tolist() == list(range(count))
    return len(logits)


def make_config(folder: Path, name: str, model: dict[str, Any], tasks: dict[str, Any]) -> FinetuneConfig:
    """A run from random weights that takes a second."""
    return FinetuneConfig.model_validate(
        {
            "name": name,
            "out": folder / "finetuned",
            "tasks": tasks,
            "training": TRAINING,
            "seeds": [1],
            "scratch": {"model": MODEL | model, "tokenizer": folder / "tokenizer.json"},
            "num_threads": 1,
        }
    )


def main(folder: Path) -> None:
    squad, xsum = folder / "squad.json", folder / "xsum.jsonl"
    answering = {"kind": "squad", "train": squad, "evaluation": squad, "max_query_length": 4, "doc_stride": 4}
    summaries = {
        "kind": "xsum",
        "evaluation": xsum,
        "train": xsum,
        "max_target_length": 8,
        "min_target_length": 1,
    }
    encoder = make_config(
        folder, "encoder", {}, {"reviews": {"kind": "sst2", "path": folder / "SST-2"}, "squad": answering}
    )
    writer = make_config(
        folder, "writer", {"network": "encoder_decoder"}, {"xsum": {**summaries, "num_beams": 2}}
    )
    accelerator = make_accelerator(encoder)
    on_first(accelerator, lambda: make_inputs(folder))
    # 93 training examples: the last update has 5, which two processes share as pieces of 2, 2 and 1.
    scores = [score for config in (encoder, writer) for score in finetune(config, None, track=Recorder())]
    directory, written = scores_directory(encoder, None), scores_directory(writer, None)
    report = {
        "processes": accelerator.num_processes,
        "gathered": {str(count): gathered(accelerator, count) for count in COUNTS},
        "scores": [score.model_dump(mode="json") for score in scores],
        "logits": read(directory / "predictions-reviews-random-1.jsonl", "logits"),
        "answers": read(directory / "predictions-squad-random-1.jsonl", "prediction"),
        "summaries": read(written / "predictions-xsum-random-1.jsonl", "prediction"),
    }
    if accelerator.is_main_process:
        (folder / "report.json").write_text(json.dumps(report))
    # Nobody leaves while another still talks to the group.
    accelerator.wait_for_everyone()
    accelerator.end_training()


def make_inputs(folder: Path) -> None:
    write_sst2(folder / "SST-2", 93, 45)
    write_tokenizer(folder / "tokenizer.json")
    texts = [" ".join(WORDS[(7 * n + 5 * k) % 12] for k in range(9 + n % 8)) for n in range(13)]
    write_squad(folder / "squad.json", texts)
    rows = [{"id": n, "document": text, "summary": text[:12].strip()} for n, text in enumerate(texts)]
    (folder / "xsum.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_squad(path: Path, texts: list[str]) -> None:
    """One question about the third word of each text."""
    entries = []
    for number, text in enumerate(texts):
        answer = {"text": text.split()[2], "answer_start": len(" ".join(text.split()[:2])) + 1}
        entry = {"id": f"q{number}", "question": "the film", "answers": [answer]}
        entries.append({"context": text, "qas": [entry]})
    path.write_text(json.dumps({"data": [{"title": "t", "paragraphs": entries}]}))


def read(path: Path, key: str) -> list[Any]:
    return [json.loads(line)[key] for line in path.read_text().splitlines()]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
