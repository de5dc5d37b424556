"""The whole trainer, from the token store to the logged step, against Hugging Face's Trainer and a bare loop.

Masked language modelling, 4 layers x 256, 32 x 128 tokens a step, fp32, one process with two threads. Hugging Face's
Trainer trains RobertaForMaskedLM on blocks of as many tokens with its own collator, as its examples do; the bare loop
trains our network with torch's fused AdamW and clipping on our batches, made beforehand. Every contender is a process
of its own, in turn; the first steps are not counted.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks.harness import Comparison, compare_all, in_process, peer_name, steps_of_hugging_face
from tests.conftest import write_store

SAMPLES, LENGTH, VOCAB_SIZE, MASKED_SHARE = 32, 128, 8192, 0.15
STEPS, WARM_UP = 30, 8
ROUNDS = 3
ENVIRONMENT = {"OMP_NUM_THREADS": "2", "DS_ACCELERATOR": "cpu", "TOKENIZERS_PARALLELISM": "false"}
CONFIG = """
name: benchmark
runs_dir: {directory}/runs
data: {{stores: [{{path: {directory}/tokens}}], held_out: 0.01}}
model: {{num_layers: 4, hidden_size: 256, num_heads: 4, intermediate_size: 1024, max_positions: 512,
  attention_dropout: 0.0}}
objective: {{kind: mlm, rate: 0.15}}
batch: {{sequence_length: 128, samples: 32, micro_batch_size: 32, format: contiguous, attention: full}}
steps: {steps}
optimizer: {{lr: 1e-4}}
schedule: {{kind: constant, warmup_steps: 2}}
evaluation: {{every_steps: 100000, samples: 32}}
checkpoint: {{every_steps: 100000}}
zero: {{stage: {stage}}}
cluster: {{cpus_per_worker: 2}}
guards: {{spike_score: 50.0}}
"""


def run() -> Iterator[Comparison]:
    """Tokens per second behind the first steps."""
    with tempfile.TemporaryDirectory() as scratch:
        write_store(Path(scratch) / "tokens", num_documents=20_000, vocab_size=VOCAB_SIZE)
        peer = partial(in_process, __name__, **ENVIRONMENT)
        ours = {
            f"trainer, masked LM, 4 layers x 256, {SAMPLES} x {LENGTH}, ZeRO {stage}": partial(
                _ours, Path(scratch), stage
            )
            for stage in (0, 1)
        }
        theirs = {
            peer_name("transformers", "Trainer"): peer("hugging_face", scratch),
            peer_name("torch", "bare loop"): peer("bare_loop", scratch),
        }
        yield from compare_all(ours, theirs, "tokens", SAMPLES * LENGTH, ROUNDS)


def _ours(directory: Path, stage: int) -> float:
    """Seconds of a step of a real run with tracking, guards and its log."""
    from pipeline.pretrain.launch import create_run
    from pipeline.run.log.lines import entries_from

    run = create_run(_config(directory, stage))
    command = [sys.executable, "-m", "pipeline.pretrain", str(run.path)]
    subprocess.run(command, env=os.environ | ENVIRONMENT, check=True, capture_output=True)
    steps = [entry["time_ms"] / 1000 for entry, _ in entries_from(run) if entry["kind"] == "train"]
    return _median_step(steps)


def _config(directory: Path, stage: int = 1) -> Any:
    from pipeline.config.loading import load_config
    from pipeline.run.config import PretrainConfig

    path = directory / "benchmark.yaml"
    path.write_text(CONFIG.format(directory=directory, steps=STEPS, stage=stage))
    return load_config(PretrainConfig, path)


def hugging_face(directory: str) -> float:
    """Seconds of a step as Hugging Face's language modelling example trains."""
    import torch
    from datasets import Dataset
    from transformers import DataCollatorForLanguageModeling, PreTrainedTokenizerFast

    from data_prep.token_store import TokenStore
    from tests.benchmarks.training_step import roberta

    torch.set_num_threads(2)
    store = TokenStore.open(Path(directory) / "tokens", verify=False)
    flat = np.concatenate([store.tokens(number) for number in range(store.num_documents)]).astype(np.int64)
    blocks = flat[: len(flat) // LENGTH * LENGTH].reshape(-1, LENGTH)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(store.tokenizer_path), mask_token="<mask>", pad_token="<pad>"
    )
    ends = steps_of_hugging_face(
        roberta(),
        Dataset.from_dict({"input_ids": blocks}),
        DataCollatorForLanguageModeling(tokenizer, mlm_probability=MASKED_SHARE),
        f"{directory}/hugging-face",
        time.perf_counter,
        per_device_train_batch_size=SAMPLES,
        max_steps=STEPS,
        learning_rate=1e-4,
    )
    return _median_step(ends)


def bare_loop(directory: str) -> float:
    """Seconds of a step of our network on our batches with nothing around it."""
    import torch

    from models.initialization import init_weights
    from pipeline.checkpoint.references import resolve_model
    from pipeline.run.inputs import open_inputs
    from pipeline.samples.noise import Noise

    torch.set_num_threads(2)
    config = _config(Path(directory))
    inputs = open_inputs(config, verify=False, resolve=resolve_model)
    model = inputs.build_model()
    init_weights(model, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    noise, numbers = Noise.of("train", 1), np.arange(STEPS * SAMPLES).reshape(STEPS, SAMPLES)
    batches = [inputs.corrupt(inputs.train.batch(own), noise) for own in numbers]
    ends = []
    for batch in batches:
        losses, _ = model(**{name: torch.from_numpy(array) for name, array in batch.inputs.items()})
        (sum(losses.values()) / batch.counts["mlm"]).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        ends.append(time.perf_counter())
    return _median_step(ends)


def _median_step(ends: list[float]) -> float:
    return statistics.median(np.diff(ends[WARM_UP:]).tolist())
