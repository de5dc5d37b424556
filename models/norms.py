"""LayerNorm or RMSNorm, chosen by the configuration."""

from __future__ import annotations

from torch import nn

from models.config import TransformerConfig


def make_norm(config: TransformerConfig, width: int | None = None) -> nn.LayerNorm | nn.RMSNorm:
    """Normalisation over `width` (hidden_size unless given)."""
    width = config.hidden_size if width is None else width
    if config.norm_kind == "rms":
        return nn.RMSNorm(width, eps=config.norm_eps)
    return nn.LayerNorm(width, eps=config.norm_eps, bias=config.biases)
