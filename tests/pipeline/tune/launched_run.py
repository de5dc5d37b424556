"""Run under `torchrun` by test_processes.py: fine-tunes and reports what this many processes did."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from cluster.artefacts.errors import PreemptedError
from cluster.artefacts.manifest import read_manifest
from pipeline.tune.config import FinetuneConfig
from pipeline.tune.learner import make_accelerator, on_first
from pipeline.tune.run import finetune
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

TRAINING = {"epochs": 4, "batch_size": 8, "micro_batch_size": 2, "lr": 3e-3, "max_length": 16}
# The gradient of keys' biases is zero but for rounding, which a smaller epsilon would make updates of.
TRAINING |= {"keep": "best", "optimizer": {"eps": 1e-6}}
LORA = {"training": TRAINING | {"peft": {"kind": "lora", "rank": 2}}}
KEPT: dict[str, Any] = {"save_models": True}
CASES: dict[str, dict[str, Any]] = {
    "plain": KEPT,
    "stage 1": KEPT | {"zero": {"stage": 1}},
    "stage 3": KEPT | {"zero": {"stage": 3, "offload_optimizer": {}, "offload_parameters": {}}},
    "plain, lora": LORA,
    "stage 2, lora": LORA | {"zero": {"stage": 2}},
    "plain, bf16": KEPT | {"precision": "bf16"},
    "stage 2, bf16": KEPT | {"zero": {"stage": 2}, "precision": "bf16"},
    "answers": {"kind": "squad", "max_query_length": 4, "doc_stride": 4},
    "summaries": {"kind": "xsum", "max_target_length": 8, "min_target_length": 1, "num_beams": 2},
}
"""Changes of the settings by name, or of another form the settings of the task."""
ALONE = ("plain", "answers", "summaries")
"""Cases that one process computes, too."""
RESUMED = {"stage 3": "stage 3", "stage 1": "plain", "plain": "stage 1"}
"""Cases that are stopped in an update, and the cases that go on from there."""


def make_config(folder: Path, name: str) -> FinetuneConfig:
    """A run from random weights that takes a second."""
    changes = CASES[name]
    network = "encoder_decoder" if name == "summaries" else "encoder"
    if "kind" in changes:
        files = dict.fromkeys(("train", "evaluation"), folder / f"{changes['kind']}.json")
        changes = {"tasks": {"reviews": changes | files}}
    plain = {"training": TRAINING, "seeds": [1], "scratch": scratch_in(folder, network=network)}
    return config_in(folder, name=name.replace(", ", "-").replace(" ", ""), **plain | changes)


def all_cases(folder: Path, precision: str, names: Iterable[str] = CASES) -> dict[str, Any]:
    """All cases of a precision. An accelerator computes in one for the life of a process."""
    cases = {name: make_config(folder, name) for name in names}
    cases = {name: config for name, config in cases.items() if config.precision == precision}
    accelerator = make_accelerator(next(iter(cases.values())))
    on_first(accelerator, lambda: make_inputs(folder))
    found: dict[str, Any] = {name: trained(config) for name, config in cases.items()}
    for before, after in RESUMED.items() if RESUMED.keys() <= cases.keys() else ():
        recorder, name = Recorder(), f"resumed-{before[-1]}"
        with recorder, pytest.raises(PreemptedError, match=" 14"), in_update(14, stop_second):
            finetune(cases[before].model_copy(update={"name": name}), None)
        found[f"{before} -> {after}"] = trained(cases[after].model_copy(update={"name": name}), recorder)
        if os.environ["RANK"] == "0":
            assert [run.status for run in recorder.runs] == ["FINISHED"]
    return found | {"processes": accelerator.num_processes}


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
        "examples": score.num_evaluation_examples,
        "metrics": [epoch.metrics for epoch in score.epochs],
        "losses": json.loads((directory / "losses-reviews-random-1.json").read_text()),
        "predictions": [
            line.get("logits", line["prediction"]) for line in predictions(directory, "reviews-random-1")
        ],
        "weights": {name: tensor.double().sum().item() for name, tensor in tensors.items()},
        "manifest": read_manifest(directory).fingerprint,
    }


def make_inputs(folder: Path) -> None:
    write_sst2(folder / "SST-2", 93, 131)
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
    (folder / "xsum.json").write_text("".join(json.dumps(row) + "\n" for row in rows))


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
        found = trained(make_config(folder, "stage 3"))
    else:
        found = all_cases(folder, what)
    if os.environ.get("RANK", "0") == "0":
        (folder / "report.json").write_text(json.dumps(found))
    if torch.distributed.is_initialized():
        # Nobody leaves while another still talks to the group.
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
