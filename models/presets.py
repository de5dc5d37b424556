"""The sizes that the papers published."""

from __future__ import annotations

from models.config import TransformerConfig


def roberta_base(vocab_size: int | None = 50265) -> TransformerConfig:
    """RoBERTa base, 125 million parameters (Liu et al. 2019, sections 4 and 4.4)."""
    return TransformerConfig(
        vocab_size=vocab_size, num_layers=12, hidden_size=768, num_heads=12, intermediate_size=3072
    )


def roberta_large(vocab_size: int | None = 50265) -> TransformerConfig:
    """RoBERTa large, 355 million parameters (Liu et al. 2019, section 5)."""
    return TransformerConfig(
        vocab_size=vocab_size, num_layers=24, hidden_size=1024, num_heads=16, intermediate_size=4096
    )
