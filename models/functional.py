"""Normalisation, dropout and fused layers, as the blocks of a network use them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.config import TransformerConfig


def make_norm(config: TransformerConfig, width: int | None = None) -> nn.LayerNorm | nn.RMSNorm:
    """Normalisation over `width` (hidden_size unless given)."""
    width = config.hidden_size if width is None else width
    if config.norm_kind == "rms":
        return nn.RMSNorm(width, eps=config.norm_eps)
    return nn.LayerNorm(width, eps=config.norm_eps, bias=config.biases)


class FusedLinear(nn.Linear):
    """Several linear layers that read the same input, computed as one."""

    def __init__(self, in_features: int, rows: tuple[int, ...], *, bias: bool) -> None:
        super().__init__(in_features, sum(rows), bias=bias)
        self.rows = rows
        """Outputs of each, in order."""


_LEVELS = 1 << 16
"""Probabilities are honoured to one part in so many."""


def dropout(hidden: Tensor, probability: float, training: bool) -> Tensor:
    """Zero each element with a probability and scale the others to keep the mean; only in training.

    On a CPU the generator is most of the cost: one draw of 64 bits decides about four elements here, so the
    probability is rounded to 1 / 65,536. Everywhere else this is PyTorch's dropout. Both draw from torch's default
    generator.
    """
    if not training or probability == 0.0:
        return hidden
    if hidden.device.type != "cpu" or torch.compiler.is_compiling():
        return F.dropout(hidden, probability, True)
    return hidden * _mask(hidden, round(probability * _LEVELS))


@torch.no_grad()
def _mask(hidden: Tensor, dropped: int) -> Tensor:
    """0 where an element is dropped, which happens in `dropped` of 65,536 cases, and the scale elsewhere."""
    if dropped >= _LEVELS:
        return torch.zeros_like(hidden)
    draws = torch.empty(-(-hidden.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
    levels = draws.view(torch.int16)[: hidden.numel()].view(hidden.shape)
    return (levels >= dropped - _LEVELS // 2).to(hidden.dtype).mul_(_LEVELS / (_LEVELS - dropped))
