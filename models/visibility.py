"""Tokens that see each other.

Only this module combines causality, prefixes, local windows, packed pieces, padding and a position bias, and chooses
the form of the result for attention.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from models.layout import Layout


@dataclass(frozen=True)
class Varlen:
    """Packed pieces as variable-length kernels take them."""

    query_boundaries: Tensor
    """[pieces + 1] int32 boundaries in the flattened queries."""
    key_boundaries: Tensor
    """[pieces + 1] int32 boundaries in the flattened keys."""
    longest_query: int
    """Upper bound of a piece's queries."""
    longest_key: int
    """Upper bound of a piece's keys."""
    window: tuple[int, int]
    """Keys seen to the left and to the right of a query; -1 for all."""


@dataclass(frozen=True)
class Visible:
    """Keys that the queries of one attention see, in one of three forms; without any of them, all see all.

    Raises:
        ValueError: more than one form is given.
    """

    mask: Tensor | None = None
    """bool, True where a query may attend to a key, or float numbers to add to the scores (a position bias, and the
    lowest number where a key is hidden); broadcastable to [batch, heads, length (query), length (key)]."""
    causal: bool = False
    """A query sees the keys up to its own place, and there are as many keys as queries."""
    varlen: Varlen | None = None
    """The boundaries of packed pieces, for a variable-length kernel."""

    def __post_init__(self) -> None:
        if (self.mask is not None) + self.causal + (self.varlen is not None) > 1:
            raise ValueError("attention is either causal, or masked, or left to a variable-length kernel")


def see(
    layout: Layout,
    *,
    causal: bool = False,
    window: int | None = None,
    prefix_lengths: Tensor | None = None,
    bias: Tensor | None = None,
    varlen: bool = False,
) -> Visible:
    """Visibility between the tokens of a sequence. A token is hidden if any of the conditions hides it.

    Args:
        causal: only tokens before it, and itself.
        window: only tokens at most `window` // 2 away; with `causal`, the last `window`.
        prefix_lengths: [pieces] int32, or [batch] where nothing is packed: tokens at the beginning of each piece that
            every token of the piece sees, although `causal` or `window` would hide them.
        bias: [1 or batch, heads, length, past + length] numbers to add to the scores.
        varlen: leave packed pieces to the variable-length kernel. It knows neither bias nor prefix: with one of these,
            the same is computed with a mask.

    Raises:
        ValueError: prefix_lengths without `causal`.
    """
    if prefix_lengths is not None and not causal:
        raise ValueError("prefix_lengths belong to causal attention; without it every token sees all others")
    if varlen and layout.cu_seqlens is not None and bias is None and prefix_lengths is None:
        left = -1 if window is None else (window - 1 if causal else window // 2)
        right = 0 if causal else (-1 if window is None else window // 2)
        boundaries = layout.cu_seqlens.int()
        return Visible(varlen=Varlen(boundaries, boundaries, layout.length, layout.length, (left, right)))
    # A single token is the last one: nothing comes after it.
    hides_later = causal and layout.length > 1
    everywhere = window is None and prefix_lengths is None
    in_whole_rows = layout.piece_ids is None and layout.present is None and bias is None
    if everywhere and in_whole_rows and layout.past == 0:
        return Visible(causal=hides_later)
    mask = None if everywhere and not hides_later else _by_place(layout, causal, window, prefix_lengths)
    if layout.piece_ids is not None:
        mask = _both(mask, _same_piece(layout.piece_ids, layout.piece_ids))
    if layout.present is not None:
        mask = _both(mask, layout.present[:, None, None, :])
        if mask.shape[2] > 1:
            # Padding before a text sees no token; it may see itself, or its hidden states would become NaN.
            total = layout.past + layout.length
            itself = torch.eye(total, dtype=torch.bool, device=mask.device)[layout.past :]
            mask = mask | itself[None, None]
    if bias is not None:
        mask = bias if mask is None else torch.where(mask, bias, torch.finfo(bias.dtype).min)
    return Visible(mask)


def see_memory(layout: Layout, memory: Layout, *, varlen: bool = False) -> Visible:
    """Visibility of the encoder's output to a decoder's tokens: piece i of the decoder reads the encoder's piece i.

    Raises:
        ValueError: only one of both is packed.
    """
    if layout.piece_ids is not None and memory.piece_ids is not None:
        if varlen:
            assert layout.cu_seqlens is not None
            assert memory.cu_seqlens is not None
            boundaries = layout.cu_seqlens.int(), memory.cu_seqlens.int()
            return Visible(varlen=Varlen(*boundaries, layout.length, memory.length, (-1, -1)))
        return Visible(_same_piece(layout.piece_ids, memory.piece_ids))
    if (layout.piece_ids is None) != (memory.piece_ids is None):
        raise ValueError(
            "pack both sides of an encoder-decoder, with cu_seqlens and decoder_cu_seqlens, or neither"
        )
    return Visible(None if memory.present is None else memory.present[:, None, None, :])


def _by_place(layout: Layout, causal: bool, window: int | None, prefix_lengths: Tensor | None) -> Tensor:
    """[1 or batch, 1, length, past + length] bool: what a token sees by its place in the row."""
    key = torch.arange(layout.past + layout.length, device=layout.position_ids.device)
    distance = key[layout.past :, None] - key[None, :]
    mask = distance >= 0 if causal else torch.ones_like(distance, dtype=torch.bool)
    if window is not None:
        mask = mask & (distance < window if causal else distance.abs() <= window // 2)
    mask = mask[None, None]
    if prefix_lengths is not None:
        if layout.piece_ids is not None:
            in_prefix = layout.position_ids < prefix_lengths[layout.piece_ids]
        else:
            places = key[None] if layout.present is None else layout.present.cumsum(-1) - 1
            in_prefix = places < prefix_lengths[:, None]
        mask = mask | in_prefix[:, None, None, :]
    return mask


def _same_piece(queries: Tensor, keys: Tensor) -> Tensor:
    """[batch, length] piece numbers of both to a [batch, 1, length (query), length (key)] bool mask."""
    return (queries.unsqueeze(2) == keys.unsqueeze(1)).unsqueeze(1)


def _both(mask: Tensor | None, other: Tensor) -> Tensor:
    return other if mask is None else mask & other
