"""The choice of the kernel that computes attention."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import nn

from models.config import NetworkConfig, TransformerConfig
from models.transformer import Transformer

Backend = Literal["auto", "sdpa", "varlen"]


class Choice(NamedTuple):
    """A decision with its reason, for the log."""

    backend: Literal["sdpa", "varlen"]
    reason: str


_LEAST_CAPABILITY = (8, 0)
"""Compute capability of the first GPUs that flash attention has kernels for: Ampere (Dao 2023)."""
_LARGEST_HEAD = 192
"""Head size up to which flash attention has a backward pass on all of them."""


def choose_backend(
    config: NetworkConfig,
    requested: Backend,
    *,
    device: torch.device,
    dtype: torch.dtype,
    capability: tuple[int, int] | None = None,
) -> Choice:
    """`varlen` flash attention reads packed pieces without computing what they must not see; it needs a CUDA device of
    compute capability 8.0, half precision, heads that its kernels know, no position bias and no dropout of attention
    weights. Everything else is `sdpa`.

    Args:
        capability: compute capability of the device; None asks it, and takes one that is not there for a new one.

    Raises:
        ValueError: `varlen` is asked for where it cannot work; says why.
    """
    if requested == "sdpa":
        return Choice("sdpa", "asked for")
    obstacles = []
    if not isinstance(config, TransformerConfig):
        obstacles.append("the network has no attention")
    else:
        if config.positions == "relative_bias":
            obstacles.append("positions: relative_bias adds numbers to the scores")
        if config.attention_dropout:
            obstacles.append(f"attention_dropout is {config.attention_dropout}, and the kernel has none")
        if config.head_size % 8 or config.head_size > _LARGEST_HEAD:
            obstacles.append(f"heads have size {config.head_size}, not a multiple of 8 up to {_LARGEST_HEAD}")
    if device.type != "cuda":
        obstacles.append(f"the device is {device.type}, not cuda")
    elif (own := capability or _capability(device)) < _LEAST_CAPABILITY:
        obstacles.append(f"the GPU's compute capability is {own[0]}.{own[1]}, not 8.0 or higher")
    if dtype not in (torch.bfloat16, torch.float16):
        obstacles.append(f"the precision is {dtype}, not bfloat16 or float16")
    if not obstacles:
        return Choice("varlen", "packed pieces, half precision and CUDA")
    if requested == "varlen":
        raise ValueError(
            f"attention_backend: varlen is not possible: {'; '.join(obstacles)}; take attention_backend: auto"
        )
    return Choice("sdpa", "; ".join(obstacles))


def _capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device) if torch.cuda.is_available() else _LEAST_CAPABILITY


def use_backend(model: nn.Module, choice: Choice) -> None:
    """Make every stack of a network follow the choice."""
    for module in model.modules():
        if isinstance(module, Transformer):
            module.varlen = choice.backend == "varlen"
