"""Multi-head attention: self-attention, and a decoder's cross-attention to the encoder's output; with the cache of keys
and values of tokens that a decoder has read, so that the next one costs one position."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.config import TransformerConfig
from models.embeddings import Rotation, rotate
from models.functional import FusedLinear
from models.layout import ReadPositions, Unpadded
from models.visibility import Varlen, Visible

SPARE_POSITIONS = 32
"""Positions that a cache makes room for at least when it grows."""


class LayerCache:
    """Keys and values of one attention, [rows, heads, length, head size] each.

    They lie in tensors with room for more positions, so that another one is written and nothing is copied. For use
    without gradients.
    """

    def __init__(self) -> None:
        self._keys: Tensor | None = None
        self._values: Tensor | None = None
        self.length = 0
        """Positions held."""

    @property
    def rows(self) -> int:
        return 0 if self._keys is None else len(self._keys)

    def pair(self) -> tuple[Tensor, Tensor]:
        """The keys and values held; only where there are any."""
        assert self._keys is not None
        assert self._values is not None
        return self._keys[:, :, : self.length], self._values[:, :, : self.length]

    def extend(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Add the keys and values of further positions; returns the keys and values of all."""
        start, self.length = self.length, self.length + key.shape[2]
        self._keys = _write(self._keys, key, start)
        self._values = _write(self._values, value, start)
        return self.pair()

    def select(self, rows: Tensor) -> None:
        """Keep the given rows, in their order; a row may be taken more than once."""
        if self._keys is not None and self._values is not None:
            rows = rows.to(self._keys.device)
            self._keys = _select(self._keys, rows, self.length)
            self._values = _select(self._values, rows, self.length)


@dataclass
class DecoderCache:
    """The caches of all layers of a decoder."""

    self_attention: list[LayerCache]
    """One per layer."""
    cross_attention: list[LayerCache]
    """One per layer of an encoder-decoder's decoder; none otherwise."""

    @property
    def length(self) -> int:
        """Positions of the decoder that were read."""
        return self.self_attention[0].length

    @property
    def rows(self) -> int:
        return self.self_attention[0].rows

    def select(self, rows: Tensor) -> None:
        """Keep the given rows of the decoder in all layers, as beam search needs it. Keys and values of the memory
        stay, so rows that share a memory must keep sharing it."""
        for cache in self.self_attention:
            cache.select(rows)

    def select_memory(self, rows: Tensor) -> None:
        """Keep the given rows of the memory in all layers."""
        for cache in self.cross_attention:
            cache.select(rows)


def _write(held: Tensor | None, new: Tensor, start: int) -> Tensor:
    """Put [rows, heads, count, size] at position `start`, in a larger tensor if there is no room."""
    end = start + new.shape[2]
    if held is None:
        return new
    if end > held.shape[2]:
        larger = held.new_empty(
            *held.shape[:2], max(end, start + SPARE_POSITIONS, start * 3 // 2), held.shape[3]
        )
        larger[:, :, :start] = held[:, :, :start]
        held = larger
    held[:, :, start:end] = new
    return held


def _select(held: Tensor, rows: Tensor, length: int) -> Tensor:
    """Rows of the first `length` positions, with room for as many positions as before."""
    selected = held.new_empty(len(rows), *held.shape[1:])
    torch.index_select(held[:, :, :length], 0, rows, out=selected[:, :, :length])
    return selected


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
        read: ReadPositions | None = None,
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
        rows = (config.attention_size, config.key_value_size, config.key_value_size)
        self.qkv = FusedLinear(config.hidden_size, rows, bias=config.biases)

    def forward(
        self,
        hidden: Tensor,
        visible: Visible,
        rotation: Rotation | None = None,
        cache: LayerCache | None = None,
        places: Unpadded | None = None,
        read: ReadPositions | None = None,
    ) -> Tensor:
        """[batch, length, hidden], or [1, tokens, hidden] with `places`, to the same; to [1, read, hidden] with `read`.

        Args:
            cache: keys and values of the tokens before; keys and values of `hidden` are added to it.
            places: of the tokens in their rows, where padding is left out.
            read: the positions of `hidden` that are given, where not all are.
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
        rows = (config.key_value_size, config.key_value_size)
        self.key_value = FusedLinear(config.hidden_size, rows, bias=config.biases)

    def forward(
        self,
        hidden: Tensor,
        memory: Tensor,
        visible: Visible,
        cache: LayerCache | None = None,
        read: ReadPositions | None = None,
    ) -> Tensor:
        """As `SelfAttention.forward`.

        Args:
            hidden: [batch, length, hidden] of the decoder; or [batch * beams, length, hidden] where the beams of a text
                lie side by side and share its memory.
            memory: [batch, memory length, hidden] of the encoder.
            cache: holds the memory's keys and values from the first call on.
        """
        # Nothing hides one position of a decoder from another here, so beams are read like positions.
        query_side = hidden.reshape(len(memory), -1, hidden.shape[2])
        (query,) = self._heads(self.query(query_side), self.num_heads)
        if cache is not None and cache.length:
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
