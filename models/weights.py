"""Counting, checking and transferring the parameters of networks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

SHOWN_NAMES = 8
"""Tensor names listed in a message before the rest is only counted."""


def count_parameters(model: nn.Module) -> int:
    """Number of parameters; one that is used in several places counts once. Works on the meta device."""
    return sum(parameter.numel() for parameter in model.parameters())


def check_tensors(expected: Mapping[str, Tensor], found: Mapping[str, Tensor], source: str) -> None:
    """Compare names and shapes of two sets of tensors; values are not read.

    Args:
        expected: what the network has; may be on the meta device.
        found: what is to be loaded into it.
        source: what `found` is, to begin the message with.

    Raises:
        ValueError: tensors are missing, unexpected or of another shape; they are named.
    """
    problems = []
    if missing := sorted(expected.keys() - found.keys()):
        problems.append(f"missing {_listed(missing)}")
    if unexpected := sorted(found.keys() - expected.keys()):
        problems.append(f"unexpected {_listed(unexpected)}")
    mismatched = [
        f"{name} is {list(found[name].shape)}, expected {list(expected[name].shape)}"
        for name in sorted(expected.keys() & found.keys())
        if found[name].shape != expected[name].shape
    ]
    if mismatched:
        problems.append(f"other shapes: {_listed(mismatched)}")
    if problems:
        raise ValueError(f"{source} does not fit the network: {'; '.join(problems)}")


@torch.no_grad()
def load_encoder_weights(model: nn.Module, state_dict: Mapping[str, Tensor]) -> None:
    """Start a network from the encoder of another, as fine-tuning does.

    Copies the tensors named `encoder.*` into `model` and ignores the others, which belong to the old head.
    Nothing is copied unless everything fits. Precision and device follow `model`.

    Args:
        model: a network with an `encoder`.
        state_dict: the state of any network with an `encoder` of the same configuration.

    Raises:
        ValueError: encoder tensors are missing, unexpected or of another shape; they are named.
    """
    prefix = "encoder."
    expected = {name: tensor for name, tensor in model.state_dict().items() if name.startswith(prefix)}
    found = {name: tensor for name, tensor in state_dict.items() if name.startswith(prefix)}
    check_tensors(expected, found, "the encoder to start from")
    for name, tensor in expected.items():
        tensor.copy_(found[name])


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:SHOWN_NAMES])
    return shown if len(names) <= SHOWN_NAMES else f"{shown} and {len(names) - SHOWN_NAMES} more"


def decay_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Optimizer groups: decay for matrices, none for biases and norms, as BERT's released code has it."""
    parameters = list(model.parameters())
    return [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0},
    ]
