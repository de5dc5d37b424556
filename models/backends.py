"""Which kernel computes attention, and why."""

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


def choose_backend(
    config: NetworkConfig, requested: Backend, *, device: torch.device, dtype: torch.dtype
) -> Choice:
    """`varlen` flash attention reads packed pieces without computing what they must not see; it needs a CUDA device,
    half precision, no position bias and no dropout of attention weights. Everything else is `sdpa`.

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
    if device.type != "cuda":
        obstacles.append(f"the device is {device.type}, not cuda")
    if dtype not in (torch.bfloat16, torch.float16):
        obstacles.append(f"the precision is {dtype}, not bfloat16 or float16")
    if not obstacles:
        return Choice("varlen", "packed pieces, half precision and CUDA")
    if requested == "varlen":
        raise ValueError(
            f"attention_backend: varlen is not possible: {'; '.join(obstacles)}; take attention_backend: auto"
        )
    return Choice("sdpa", "; ".join(obstacles))


def use_backend(model: nn.Module, choice: Choice) -> None:
    """Make every stack of a network follow the choice."""
    for module in model.modules():
        if isinstance(module, Transformer):
            module.varlen = choice.backend == "varlen"
