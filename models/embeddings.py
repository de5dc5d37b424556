"""Token and position embeddings."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from models.config import TransformerConfig


class Embeddings(nn.Module):
    """Sum of token and learned position embeddings, normalised, then dropped out.

    Devlin et al. 2019, section 3, figure 2, without segment embeddings: RoBERTa trains on full sentences and
    has a single segment (Liu et al. 2019, section 4.2).

    Raises:
        ValueError: `config.vocab_size` is not set.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.tokens = nn.Embedding(config.require_vocab_size(), config.hidden_size)
        self.positions = nn.Embedding(config.max_positions, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.norm_eps)
        self.dropout = config.dropout

    def forward(self, input_ids: Tensor, position_ids: Tensor) -> Tensor:
        """Embed tokens.

        Args:
            input_ids: [batch, length] int64.
            position_ids: [batch, length] or [length] int64, each below `max_positions`.

        Returns:
            [batch, length, hidden].
        """
        embedded = self.norm(self.tokens(input_ids) + self.positions(position_ids))
        return F.dropout(embedded, self.dropout, self.training)
