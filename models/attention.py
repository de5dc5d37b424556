"""Multi-head self-attention."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from models.config import TransformerConfig


class SelfAttention(nn.Module):
    """Multi-head scaled dot-product self-attention (Vaswani et al. 2017, sections 3.2.1 and 3.2.2).

    One matrix computes queries, keys and values, in this order along its rows.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.num_heads = config.num_heads
        self.head_size = config.head_size
        self.dropout = config.attention_dropout
        self.qkv = nn.Linear(config.hidden_size, 3 * config.hidden_size)
        self.output = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, hidden: Tensor, mask: Tensor | None = None) -> Tensor:
        """Mix information between tokens.

        Args:
            hidden: [batch, length, hidden].
            mask: bool, True where a query may attend to a key, broadcastable to
                [batch, heads, length (query), length (key)]; None lets every token attend to every other.

        Returns:
            [batch, length, hidden].
        """
        batch, length, width = hidden.shape
        qkv = self.qkv(hidden).view(batch, length, 3, self.num_heads, self.head_size)
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, dropout_p=self.dropout if self.training else 0.0
        )
        return self.output(mixed.transpose(1, 2).reshape(batch, length, width))
