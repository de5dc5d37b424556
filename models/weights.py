"""Counting, checking, grouping and writing the parameters of networks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor, nn

from models.functional import FusedLinear

SHOWN_NAMES = 8
"""Tensor names listed in a message before the rest is only counted."""


def count_parameters(model: nn.Module) -> int:
    """Number of parameters; one that is used in several places counts once. Works on the meta device."""
    return sum(parameter.numel() for parameter in model.parameters())


def write_safetensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """Write a safetensors file with the permissions of any new file; from safetensors 0.8 on, only its owner may read
    what `save_file` makes."""
    path.touch()
    permissions = path.stat().st_mode
    save_file(tensors, path, metadata)
    path.chmod(permissions)


def check_tensors(expected: Mapping[str, Tensor], found: Mapping[str, Tensor], source: str) -> None:
    """Compare names and shapes of two sets of tensors; values are not read.

    Args:
        expected: what the network has; may be on the meta device.
        found: the tensors to load into it.
        source: name of `found`, which begins the message.

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


def check_values(tensors: Mapping[str, Tensor], source: str) -> None:
    """Refuse weights that are not finite.

    Raises:
        ValueError: names the first tensor that is not finite, and counts the others.
    """
    broken = [
        name
        for name, tensor in tensors.items()
        if tensor.is_floating_point() and not tensor.is_meta and not tensor.isfinite().all()
    ]
    if broken:
        others = f" and {len(broken) - 1} other tensors" if len(broken) > 1 else ""
        raise ValueError(
            f"{source} have NaN or infinite values in {broken[0]}{others}; take them from a checkpoint from before "
            "training diverged, or fetch the files again"
        )


def with_prefix(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names begin with a prefix, by the rest of their names."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:SHOWN_NAMES])
    return shown if len(names) <= SHOWN_NAMES else f"{shown} and {len(names) - SHOWN_NAMES} more"


def decay_groups(
    model: nn.Module, weight_decay: float, layer_decay: float | None = None
) -> list[dict[str, Any]]:
    """Optimizer groups: decay for matrices, none for biases and norms, as BERT's released code has it.

    Args:
        layer_decay: learning rate of each layer as a share of the layer's above it; None gives all the same.

    Returns:
        Groups with `params`, `weight_decay` and `lr_scale`, the group's share of the learning rate.
    """
    scales = {} if layer_decay is None else layer_scales(model, layer_decay)
    groups: dict[tuple[float, bool], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            groups.setdefault((scales.get(name, 1.0), parameter.dim() > 1), []).append(parameter)
    # Matrices first, the top of the network first: the order does not depend on which module is declared first.
    return [
        {
            "params": groups[scale, is_matrix],
            "weight_decay": weight_decay if is_matrix else 0.0,
            "lr_scale": scale,
        }
        for scale, is_matrix in sorted(groups, reverse=True)
    ]


def fused_rows(model: nn.Module) -> dict[nn.Parameter, tuple[int, ...]]:
    """The rows of each matrix, or elements of each bias, of the parameters that hold several: queries, keys and values,
    and both halves of gated blocks."""
    fused = (each for each in model.modules() if isinstance(each, FusedLinear) and len(each.rows) > 1)
    return {parameter: each.rows for each in fused for parameter in each.parameters(recurse=False)}


_LAYER = re.compile(
    r"(?P<network>|.*?\.)(?P<part>encoder|decoder)\."
    r"(?:transformer\.layers|forward_layers|backward_layers)\.(?P<number>\d+)\."
)
_BELOW_LAYERS = re.compile(r"(?:^|\.)(?:encoder|decoder)\.(?:embeddings|tokens|transformer\.relative_bias)\.")


def is_in_layer(name: str) -> bool:
    """Whether a parameter belongs to a layer of a stack; embeddings, final norms and heads do not."""
    return _LAYER.match(name) is not None


def layer_scales(model: nn.Module, layer_decay: float) -> dict[str, float]:
    """Share of the learning rate of every parameter: `layer_decay` to the number of layers above its own.

    Embeddings count as the layer below all; heads and final norms as the layer on top. (ELECTRA's released code, Clark
    et al. 2020, leaves one layer out between the last one and the heads.) A decoder is above its encoder. Networks side
    by side, such as ELECTRA's generator and discriminator, are counted each for itself.
    """
    names = [name for name, _ in model.named_parameters()]
    heights: dict[str, dict[str, int]] = {}
    for found in filter(None, map(_LAYER.match, names)):
        parts = heights.setdefault(found["network"], {})
        parts[found["part"]] = max(parts.get(found["part"], 0), int(found["number"]) + 1)
    scales = {}
    for name in names:
        network = max((prefix for prefix in heights if name.startswith(prefix)), key=len, default="")
        parts = heights.get(network, {})
        top = sum(parts.values()) + 1
        if found := _LAYER.match(name):
            depth = int(found["number"]) + 1 + (parts.get("encoder", 0) if found["part"] == "decoder" else 0)
        else:
            depth = 0 if _BELOW_LAYERS.search(name) else top
        scales[name] = layer_decay ** (top - depth)
    return scales
