"""Multi-head attention: self-attention, and a decoder's cross-attention to the encoder's output."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.cache import LayerCache
from models.config import TransformerConfig
from models.layout import Read, Unpadded
from models.positions import Rotation, rotate
from models.visibility import Varlen, Visible


class Attention(nn.Module):
    """Multi-head scaled dot-product attention (Vaswani et al. 2017, sections 3.2.1 and 3.2.2), and
    grouped-query attention (Ainslie et al. 2023)."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.num_heads = config.num_heads
        self.key_value_heads = config.key_value_heads
        self.head_size = config.head_size
        self.dropout = config.attention_dropout
        self.scale = None if config.scale_attention else 1.0
        self.output = nn.Linear(config.attention_size, config.hidden_size, bias=config.biases)
        self.prefix: nn.Module | None = None
        """Puts learned keys and values before those of the text; see `models.peft.prefix`."""

    def _heads(self, projected: Tensor, *counts: int) -> tuple[Tensor, ...]:
        """[batch, length, heads * head size] to one tensor [batch, count, length, head size] for each of the counts."""
        return projected.unflatten(-1, (-1, self.head_size)).transpose(1, 2).split(counts, 1)

    def _mix(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        visible: Visible,
        places: Unpadded | None = None,
        read: Read | None = None,
    ) -> Tensor:
        """[batch, heads, length, head size] queries, keys and values to [batch, length, hidden]; to
        [1, tokens, hidden] with `places`; to [1, read, hidden] with `read`.

        Keys and values may have fewer heads, each for as many neighbouring query heads.
        """
        if self.prefix is not None:
            key, value, visible = self.prefix(key, value, visible)
        if self.key_value_heads != self.num_heads:
            # Repeated, because not every kernel that reads a mask takes fewer heads of keys.
            shared_by = self.num_heads // self.key_value_heads
            key, value = key.repeat_interleave(shared_by, 1), value.repeat_interleave(shared_by, 1)
        if visible.varlen is not None:
            mixed = _varlen_attention(query, key, value, visible.varlen, self.scale)
        else:
            mixed = F.scaled_dot_product_attention(
                query,
                key,
                value,
                attn_mask=visible.mask,
                dropout_p=self.dropout if self.training else 0.0,
                is_causal=visible.causal,
                scale=self.scale,
            )
        mixed = mixed.transpose(1, 2).flatten(2)
        if read is not None:
            mixed = read.of_rows(mixed)
        elif places is not None:
            mixed = places.tokens(mixed)
        return self.output(mixed)


class SelfAttention(Attention):
    """Attention of a sequence to itself. One matrix computes queries, keys and values, in this order along its
    rows."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config)
        self.qkv = nn.Linear(
            config.hidden_size, config.attention_size + 2 * config.key_value_size, bias=config.biases
        )

    def forward(
        self,
        hidden: Tensor,
        visible: Visible,
        rotation: Rotation | None = None,
        cache: LayerCache | None = None,
        places: Unpadded | None = None,
        read: Read | None = None,
    ) -> Tensor:
        """Mix information between tokens.

        Args:
            hidden: [batch, length, hidden]; [1, tokens, hidden] with `places`.
            rotation: angles of rotary positions.
            cache: keys and values of the tokens before; keys and values of `hidden` are added to it.
            places: of the tokens in their rows, where padding is left out.
            read: the positions of `hidden` that are given, where not all are.

        Returns:
            As `hidden`; [1, read, hidden] with `read`.
        """
        counts = self.num_heads, self.key_value_heads, self.key_value_heads
        projected = self.qkv(hidden)
        if places is not None:
            projected = places.rows(projected)
        query, key, value = self._heads(projected, *counts)
        if rotation is not None:
            query, key = rotate(query, rotation), rotate(key, rotation)
        if cache is not None:
            key, value = cache.extend(key, value)
        return self._mix(query, key, value, visible, places, read)


class CrossAttention(Attention):
    """Attention of a decoder to the encoder's output (Vaswani et al. 2017, section 3.2.3)."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config)
        self.query = nn.Linear(config.hidden_size, config.attention_size, bias=config.biases)
        self.key_value = nn.Linear(config.hidden_size, 2 * config.key_value_size, bias=config.biases)

    def forward(
        self,
        hidden: Tensor,
        memory: Tensor,
        visible: Visible,
        cache: LayerCache | None = None,
        read: Read | None = None,
    ) -> Tensor:
        """Mix information from the memory into tokens.

        Args:
            hidden: [batch, length, hidden] of the decoder; or [batch * beams, length, hidden] where the beams of a text
                lie side by side and share its memory.
            memory: [batch, memory length, hidden] of the encoder.
            cache: holds the memory's keys and values from the first call on.
            read: the positions of `hidden` that are given, where not all are.

        Returns:
            As `hidden`; [1, read, hidden] with `read`.
        """
        # Nothing hides one position of a decoder from another here, so beams are read like positions.
        query_side = hidden.reshape(len(memory), -1, hidden.shape[2])
        (query,) = self._heads(self.query(query_side), self.num_heads)
        if cache is not None and cache.filled:
            key, value = cache.pair()
        else:
            key, value = self._heads(self.key_value(memory), self.key_value_heads, self.key_value_heads)
            if cache is not None:
                cache.extend(key, value)
        mixed = self._mix(query, key, value, visible, read=read)
        return mixed.view(hidden.shape) if read is None else mixed


def _varlen_attention(
    query: Tensor, key: Tensor, value: Tensor, varlen: Varlen, scale: float | None
) -> Tensor:
    """Flash attention over packed pieces; [batch, heads, length, head size] in and out."""
    from torch.nn.attention.varlen import varlen_attn

    batch, heads, length, size = query.shape
    query, key, value = (each.transpose(1, 2).reshape(-1, heads, size) for each in (query, key, value))
    mixed = varlen_attn(
        query,
        key,
        value,
        varlen.query_boundaries,
        varlen.key_boundaries,
        varlen.longest_query,
        varlen.longest_key,
        scale=scale,
        window_size=varlen.window,
    )
    assert isinstance(mixed, torch.Tensor)
    return mixed.view(batch, length, heads, size).transpose(1, 2)
