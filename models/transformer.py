"""The Transformer core: one layer, and the stack of layers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from models.attention import SelfAttention
from models.config import Activation, TransformerConfig

ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
}


class FeedForward(nn.Module):
    """Position-wise feed-forward block (Vaswani et al. 2017, section 3.3)."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.up = nn.Linear(config.hidden_size, config.intermediate_size)
        self.down = nn.Linear(config.intermediate_size, config.hidden_size)
        self.activation = ACTIVATIONS[config.activation]

    def forward(self, hidden: Tensor) -> Tensor:
        """[..., hidden] to [..., hidden], each position by itself."""
        return self.down(self.activation(self.up(hidden)))


class TransformerLayer(nn.Module):
    """Self-attention and a feed-forward block, each with dropout, a residual sum and LayerNorm."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.attention = SelfAttention(config)
        self.attention_norm = nn.LayerNorm(config.hidden_size, eps=config.norm_eps)
        self.feed_forward = FeedForward(config)
        self.feed_forward_norm = nn.LayerNorm(config.hidden_size, eps=config.norm_eps)
        self.pre_norm = config.norm == "pre"
        self.dropout = config.dropout

    def forward(self, hidden: Tensor, mask: Tensor | None = None) -> Tensor:
        """[batch, length, hidden] to [batch, length, hidden]; `mask` as in `SelfAttention`."""
        attend = partial(self.attention, mask=mask)
        hidden = self._residual(hidden, attend, self.attention_norm)
        return self._residual(hidden, self.feed_forward, self.feed_forward_norm)

    def _residual(self, hidden: Tensor, block: Callable[[Tensor], Tensor], norm: nn.LayerNorm) -> Tensor:
        """One sub-layer with its residual sum.

        Post-norm is LayerNorm(x + f(x)) (Vaswani et al. 2017, section 3.1); pre-norm is x + f(LayerNorm(x))
        (Xiong et al. 2020, section 3).
        """
        if self.pre_norm:
            return hidden + F.dropout(block(norm(hidden)), self.dropout, self.training)
        return norm(hidden + F.dropout(block(hidden), self.dropout, self.training))


class Transformer(nn.Module):
    """A stack of layers; with pre-norm, a last LayerNorm brings the residual stream back to unit scale."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(TransformerLayer(config) for _ in range(config.num_layers))
        self.final_norm = (
            nn.LayerNorm(config.hidden_size, eps=config.norm_eps) if config.norm == "pre" else nn.Identity()
        )
        self.gradient_checkpointing = False
        """Recompute each layer in the backward pass instead of keeping its activations (Chen et al. 2016)."""

    def forward(self, hidden: Tensor, mask: Tensor | None = None) -> Tensor:
        """[batch, length, hidden] to [batch, length, hidden]; `mask` as in `SelfAttention`."""
        recompute = self.gradient_checkpointing and torch.is_grad_enabled()
        for layer in self.layers:
            # The random state is saved and restored, so dropout is the same in both computations.
            hidden = (
                checkpoint(layer, hidden, mask, use_reentrant=False) if recompute else layer(hidden, mask)
            )
        return self.final_norm(hidden)
