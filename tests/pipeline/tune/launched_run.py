"""Run under `torchrun` by test_processes.py: fine-tunes and reports what this many processes did."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from cluster.artefacts.errors import PreemptedError
from cluster.artefacts.manifest import read_manifest
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
    WORDS,
    Recorder,
    config_in,
    in_update,
    predictions,
    scratch_in,
    write_sst2,
    write_tokenizer,
)

COUNTS = (1, 2, 3, 63, 64, 65, 127, 128, 129, 200)
"""Numbers of evaluation examples around multiples of the evaluation batch and of twice that."""
TRAINING = {"epochs": 4, "batch_size": 8, "micro_batch_size": 2, "lr": 3e-3, "max_length": 16}
# The gradient of keys' biases is zero but for rounding, which a smaller epsilon would make updates of.
SHARDED = TRAINING | {"keep": "best", "optimizer": {"eps": 1e-6}}
LORA = {"peft": {"kind": "lora", "rank": 2}}
CASES: dict[str, dict[str, Any]] = {
    "plain": {"save_models": True},
    "stage 0": {"save_models": True, "zero": {"stage": 0}},
    "stage 1": {"save_models": True, "zero": {"stage": 1}},
    "stage 3": {
        "save_models": True,
        "zero": {"stage": 3, "offload_optimizer": {}, "offload_parameters": {}},
    },
    "plain, lora": {"training": SHARDED | LORA},
    "stage 2, lora": {"training": SHARDED | LORA, "zero": {"stage": 2}},
    "plain, bf16": {"save_models": True, "precision": "bf16"},
    "stage 2, bf16": {"save_models": True, "zero": {"stage": 2}, "precision": "bf16"},
}
RESUMED = {"stage 3": "stage 3", "stage 1": "plain", "plain": "stage 1"}
"""Cases that are stopped in an update, and the cases that go on from there."""


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
    rows = Ragged(np.repeat(np.arange(count), lengths), np.concatenate([[0], np.cumsum(lengths)]))
    task = Rows(EncodedExamples(rows, None, np.zeros(count, dtype=np.int64)))
    logits = evaluate(accelerator, Echo(), task, task.evaluation)
    assert logits[:, 0].tolist() == list(range(count))
    return len(logits)


def make_config(folder: Path, name: str, network: str = "encoder", **changes: Any) -> FinetuneConfig:
    """A run from random weights that takes a second."""
    plain = {"training": TRAINING, "seeds": [1], "scratch": scratch_in(folder, network=network)}
    return config_in(folder, name=name.replace(", ", "-").replace(" ", ""), **plain | changes)


def every_form(folder: Path) -> dict[str, Any]:
    """Labels, answers and summaries, and evaluations of many sizes."""
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
    return {
        "processes": accelerator.num_processes,
        "gathered": {str(count): gathered(accelerator, count) for count in COUNTS},
        "scores": [score.model_dump(mode="json") for score in scores],
        "logits": [line["logits"] for line in predictions(directory, "reviews-random-1")],
        "answers": [line["prediction"] for line in predictions(directory, "squad-random-1")],
        "summaries": [line["prediction"] for line in predictions(written, "xsum-random-1")],
    }


def every_stage(folder: Path, precision: str) -> dict[str, Any]:
    """All cases of a precision. An accelerator computes in one for the life of a process."""
    cases = {
        name: make_config(folder, name, **{"training": SHARDED} | case)
        for name, case in CASES.items()
        if case.get("precision", "fp32") == precision
    }
    on_first(make_accelerator(next(iter(cases.values()))), lambda: make_inputs(folder))
    found = {name: trained(config) for name, config in cases.items()}
    for before, after in RESUMED.items() if precision == "fp32" else ():
        recorder, name = Recorder(), f"resumed-{before[-1]}"
        with recorder, pytest.raises(PreemptedError, match=" 14"), in_update(14, stop_second):
            finetune(cases[before].model_copy(update={"name": name}), None)
        found[f"{before} -> {after}"] = trained(cases[after].model_copy(update={"name": name}), recorder)
        if os.environ["RANK"] == "0":
            assert [run.status for run in recorder.runs] == ["FINISHED"]
    return found


def stop_second() -> None:
    if os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGTERM)


def trained(config: FinetuneConfig, recorder: Recorder | None = None) -> dict[str, Any]:
    """Train, and read what was written."""
    with recorder or Recorder():
        (score,) = finetune(config, None)
    directory = scores_directory(config, None)
    tensors = load_file(directory / "model-reviews-random-1.safetensors") if config.save_models else {}
    return {
        "metrics": [epoch.metrics for epoch in score.epochs],
        "losses": json.loads((directory / "losses-reviews-random-1.json").read_text()),
        "logits": [line["logits"] for line in predictions(directory, "reviews-random-1")],
        "weights": {name: tensor.double().sum().item() for name, tensor in tensors.items()},
        "manifest": read_manifest(directory).fingerprint,
    }


def make_inputs(folder: Path) -> None:
    write_sst2(folder / "SST-2", 93, 45)
    write_tokenizer(folder / "tokenizer.json")
    texts = [" ".join(WORDS[(7 * n + 5 * k) % 12] for k in range(9 + n % 8)) for n in range(13)]
    entries = []
    for number, text in enumerate(texts):
        # One question about the third word of each text.
        answer = {"text": text.split()[2], "answer_start": len(" ".join(text.split()[:2])) + 1}
        entry = {"id": f"q{number}", "question": "the film", "answers": [answer]}
        entries.append({"context": text, "qas": [entry]})
    (folder / "squad.json").write_text(json.dumps({"data": [{"title": "t", "paragraphs": entries}]}))
    rows = [{"id": n, "document": text, "summary": text[:12].strip()} for n, text in enumerate(texts)]
    (folder / "xsum.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def launch(folder: Path, what: str, processes: int = 2) -> dict[str, Any]:
    """Run this script by `torchrun`, or in one process without it, and read its report."""
    torchrun = ("-m", "torch.distributed.run", "--standalone", f"--log-dir={folder}", "--nproc-per-node=2")
    launched = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    environment = {name: value for name, value in os.environ.items() if name not in launched}
    python = forked_environment() / "bin" / "python"
    ran = subprocess.run(
        [python, *(torchrun if processes > 1 else ()), __file__, str(folder), what],
        env=environment | {"PYTHONPATH": str(Path(__file__).parents[3]), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    return json.loads((folder / "report.json").read_text())


def main(folder: Path, what: str) -> None:
    if what == "alone":
        make_inputs(folder)
        training = SHARDED | {"epochs": 1}
        found = trained(make_config(folder, what, training=training, zero={"stage": 3}))
    else:
        found = every_form(folder) if what == "every form" else every_stage(folder, what)
    if os.environ.get("RANK", "0") == "0":
        (folder / "report.json").write_text(json.dumps(found))
    if torch.distributed.is_initialized():
        # Nobody leaves while another still talks to the group.
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
