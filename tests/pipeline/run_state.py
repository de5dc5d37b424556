"""The state that a run ended with, for tests that compare runs bit by bit."""

from __future__ import annotations

from typing import Any

import torch
from safetensors.torch import load_file

from pipeline.checkpoint.checkpoint import DEEPSPEED_DIRECTORY, MODEL_FILE, list_checkpoints
from pipeline.run.directory import RunDirectory


def final_state(run: RunDirectory) -> dict[str, Any]:
    """Weights and sharded optimizer state of the last checkpoint, by name."""
    last = list_checkpoints(run.checkpoints)[-1]
    state: dict[str, Any] = dict(load_file(last / MODEL_FILE))
    for path in sorted((last / DEEPSPEED_DIRECTORY).glob("*optim_states.pt")):
        state |= _tensors(torch.load(path, weights_only=False), path.name)
    return state


def _tensors(value: Any, name: str) -> dict[str, torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return {name: value}
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found: dict[str, torch.Tensor] = {}
    for key, item in items:
        found |= _tensors(item, f"{name}/{key}")
    return found
