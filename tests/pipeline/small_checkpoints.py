"""Small checkpoints, written file by file and published as rank 0 does, for tests that need one but no training."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from cluster.artefacts.manifest import InputEntry
from models.config import NetworkConfig, TransformerConfig
from pipeline.checkpoint.checkpoint import (
    MODEL_FILE,
    TrainerState,
    description,
    manifest_of,
)
from pipeline.checkpoint.store import CheckpointStore

NETWORK = TransformerConfig(vocab_size=100)


def state_at(step: int, loss: float | None = None, **changes: Any) -> TrainerState:
    """What a trainer would say at a step; `changes` replace its fields."""
    facts = {
        "step": step,
        "samples": 16 * step,
        "predicted_tokens": 100 * step,
        "world_size": 1,
        "zero_stage": 2,
        "data_fingerprint": "d",
        "store_fingerprints": ["s"],
        "identity": {"seed": 1},
        "held_out": {} if loss is None else {"loss": loss},
        "run_id": "r",
        "run_name": "run",
    }
    return TrainerState.model_validate(facts | changes)


def write_files(
    store: CheckpointStore,
    state: TrainerState,
    files: Mapping[str, bytes] | None = None,
    *,
    network: NetworkConfig = NETWORK,
    tokenizer_json: str = "{}",
    inputs: Sequence[InputEntry] = (),
    publish: bool = True,
) -> None:
    """What a save writes: `files`, or a file of random weights, and what describes them.

    Without `publish` it stops there, as a killed one does.
    """
    staging = store.staging(state.step, f"attempt-{state.step}")
    contents = dict(files or {MODEL_FILE: os.urandom(256)}) | description(state, network, tokenizer_json)
    entries = []
    for name, data in contents.items():
        with staging.create(name) as stream:
            stream.write(data)
        entries.append(stream.entry(name))
    if publish:
        staging.publish(manifest_of(state, entries, inputs))
