"""Where the tokens of a batch lie.

A batch is packed (pieces of text side by side in a row, `cu_seqlens`), padded (`attention_mask`), or neither.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from models.segments import segments_from_cu_seqlens


@dataclass(frozen=True)
class Layout:
    """Tokens of a batch by place."""

    batch: int
    length: int
    """Tokens per row that are computed now."""
    past: int
    """Tokens per row before them, whose keys and values are cached."""
    position_ids: Tensor
    """[batch or 1, length] int64: places of the tokens in their piece."""
    cu_seqlens: Tensor | None
    """[pieces + 1] int32 where rows are packed."""
    piece_ids: Tensor | None
    """[batch, length] int64 numbers of the pieces, where rows are packed."""
    present: Tensor | None
    """[batch, past + length] bool where rows are padded: true at tokens."""


def make_layout(
    input_ids: Tensor,
    cu_seqlens: Tensor | None,
    attention_mask: Tensor | None,
    *,
    max_positions: int | None,
    position_ids: Tensor | None = None,
    past: int | None = None,
) -> Layout:
    """Read the layout of a batch.

    Args:
        input_ids: [batch, length] int64.
        cu_seqlens: [pieces + 1] int32 boundaries in the flattened batch; positions restart in every piece.
        attention_mask: [batch, past + length] bool or int, true (or 1) at tokens and false (or 0) at padding, which
            does not count as a position.
        max_positions: tokens of the longest allowed sequence; None for no limit.
        position_ids: [batch, length] to use instead.
        past: tokens per row that a cache holds; None without a cache.

    Raises:
        ValueError: a shape does not fit, both masks are given, rows are packed and there is a cache, or a sequence
            exceeds `max_positions`.
    """
    if cu_seqlens is not None and past is not None:
        raise ValueError("packed rows cannot fill or continue a cache; pad the rows instead")
    past = past or 0
    _check_inputs(input_ids, cu_seqlens, attention_mask, past)
    batch, length = input_ids.shape
    limit = max_positions if position_ids is None else None
    piece_ids = present = None
    if cu_seqlens is not None:
        piece_ids, positions = segments_from_cu_seqlens(cu_seqlens, batch, length, limit)
    else:
        _check_length(past + length, limit)
        if attention_mask is not None:
            present = attention_mask.bool()
            # Counted from the mask, so that padding on the left shifts positions too.
            positions = (present.cumsum(-1) - 1).clamp_min(0)[:, past:]
        else:
            positions = torch.arange(past, past + length, device=input_ids.device).unsqueeze(0)
    if position_ids is not None:
        positions = position_ids if position_ids.dim() == 2 else position_ids.unsqueeze(0)
    return Layout(batch, length, past, positions, cu_seqlens, piece_ids, present)


def first_positions(input_ids: Tensor) -> Tensor:
    """[batch] int64: the first position of every row of [batch, length] in the flattened batch."""
    batch, length = input_ids.shape
    return torch.arange(batch, device=input_ids.device) * length


def last_positions(input_ids: Tensor, attention_mask: Tensor | None) -> Tensor:
    """[batch] int64: the last token of every row of [batch, length], padded on either side, in the flattened batch."""
    if attention_mask is None:
        return first_positions(input_ids) + input_ids.shape[1] - 1
    return first_positions(input_ids) + attention_mask.long().cumsum(-1).argmax(-1)


def _check_inputs(
    input_ids: Tensor, cu_seqlens: Tensor | None, attention_mask: Tensor | None, past: int
) -> None:
    if input_ids.dim() != 2:
        raise ValueError(f"input_ids must have shape [batch, length], not {list(input_ids.shape)}")
    if cu_seqlens is not None and attention_mask is not None:
        raise ValueError("give cu_seqlens (packed rows) or attention_mask (padded rows), not both")
    expected = [input_ids.shape[0], past + input_ids.shape[1]]
    if attention_mask is not None and list(attention_mask.shape) != expected:
        raise ValueError(
            f"attention_mask must have the shape of input_ids, {expected}, not {list(attention_mask.shape)}"
        )


def _check_length(length: int, max_positions: int | None) -> None:
    if max_positions is not None and length > max_positions:
        raise ValueError(
            f"a row has {length} tokens, but the network knows {max_positions} positions; truncate the rows or "
            "raise max_positions"
        )
