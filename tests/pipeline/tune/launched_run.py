"""Run under `torchrun` by test_processes.py: fine-tunes and reports what this many processes did."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
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
from pipeline.tune.learner import make_accelerator, on_first
from pipeline.tune.run import finetune
from pipeline.tune.trainer import evaluate
from pipeline.tune.trials import scores_directory
from tests.pipeline.process_group import forked_environment
from tests.pipeline.tune.conftest import (
    SIZES,
    WORDS,
    Recorder,
    config_in,
    predictions,
    write_sst2,
    write_tokenizer,
)

COUNTS = (1, 2, 3, 63, 64, 65, 127, 128, 129, 200)
"""Numbers of evaluation examples around multiples of the evaluation batch and of twice that."""
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
    logits = evaluate(accelerator, Echo(), task, task.evaluation)
    assert logits[:, 0].tolist() == list(range(count))
    return len(logits)


def make_config(folder: Path, name: str, network: str = "encoder", **changes: Any) -> FinetuneConfig:
    """A run from random weights that takes a second."""
    scratch = {"model": SIZES | {"network": network}, "tokenizer": folder / "tokenizer.json"}
    return config_in(
        folder, **{"name": name, "training": TRAINING, "seeds": [1], "scratch": scratch} | changes
    )


def main(folder: Path) -> None:
    squad, xsum = (
        {"train": path, "evaluation": path} for path in (folder / "squad.json", folder / "xsum.jsonl")
    )
    answers = {"kind": "squad", **squad, "max_query_length": 4, "doc_stride": 4}
    summaries = {"kind": "xsum", **xsum, "max_target_length": 8, "min_target_length": 1, "num_beams": 2}
    reviews = {"kind": "sst2", "path": folder / "SST-2"}
    encoder = make_config(folder, "encoder", tasks={"reviews": reviews, "squad": answers})
    writer = make_config(folder, "writer", "encoder_decoder", tasks={"xsum": summaries})
    accelerator = make_accelerator(encoder)
    on_first(accelerator, lambda: make_inputs(folder))
    # 93 training examples: the last update has 5, which two processes share as pieces of 2, 2 and 1.
    with Recorder():
        scores = [score for config in (encoder, writer) for score in finetune(config, None)]
    directory, written = scores_directory(encoder, None), scores_directory(writer, None)
    report = {
        "processes": accelerator.num_processes,
        "gathered": {str(count): gathered(accelerator, count) for count in COUNTS},
        "scores": [score.model_dump(mode="json") for score in scores],
        "logits": [line["logits"] for line in predictions(directory, "reviews-random-1")],
        "answers": [line["prediction"] for line in predictions(directory, "squad-random-1")],
        "summaries": [line["prediction"] for line in predictions(written, "xsum-random-1")],
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


def launch(script: str, folder: Path, launcher: Sequence[str] = (), *arguments: str) -> None:
    """Run a script with this folder, by `torchrun` or, without a launcher, in one process."""
    root = Path(__file__).parents[3]
    launched = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    environment = {name: value for name, value in os.environ.items() if name not in launched}
    ran = subprocess.run(
        [forked_environment() / "bin" / "python", *launcher, script, str(folder), *arguments],
        env=environment | {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr[-4000:]


def launch_two(script: str, folder: Path, *arguments: str) -> dict[str, Any]:
    """Run a script in two processes, and read its report."""
    torchrun = ("-m", "torch.distributed.run", "--standalone", f"--log-dir={folder}", "--nproc-per-node=2")
    launch(script, folder, torchrun, *arguments)
    return read_report(folder)


def read_report(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "report.json").read_text())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
