"""Packed rows: several pieces of text side by side that must not see each other."""

from __future__ import annotations

import torch
from torch import Tensor


def segments_from_cu_seqlens(
    cu_seqlens: Tensor, batch: int, length: int, max_positions: int | None = None
) -> tuple[Tensor, Tensor]:
    """Number the pieces of a packed batch, and the tokens inside each piece.

    Args:
        cu_seqlens: [num_pieces + 1] int32 or int64 boundaries of the pieces in the flattened (row-major)
            batch: first 0, last batch * length. No piece crosses a row. Repeated boundaries are empty
            pieces, so a batch may pad its boundaries to a fixed count by repeating the last.
        batch: rows.
        length: tokens in a row.
        max_positions: tokens in the longest allowed piece.

    Returns:
        piece_ids and position_ids, both [batch, length] int64. Positions restart at 0 in every piece.

    Raises:
        ValueError: the boundaries are not as described. Values are checked only in host memory, because
            reading them from an accelerator would stall it once per batch.
    """
    if cu_seqlens.dim() != 1 or cu_seqlens.dtype not in (torch.int32, torch.int64):
        raise ValueError(
            "cu_seqlens must be an int32 or int64 tensor of shape [num_pieces + 1], "
            f"not {cu_seqlens.dtype} of shape {list(cu_seqlens.shape)}"
        )
    if cu_seqlens.device.type == "cpu" and not torch.compiler.is_compiling():
        _check_boundaries(cu_seqlens, batch, length, max_positions)
    token = torch.arange(batch * length, dtype=cu_seqlens.dtype, device=cu_seqlens.device)
    piece_ids = torch.searchsorted(cu_seqlens, token, right=True) - 1
    position_ids = token - cu_seqlens[piece_ids]
    return piece_ids.view(batch, length), position_ids.long().view(batch, length)


def same_piece_mask(piece_ids: Tensor) -> Tensor:
    """[batch, length] piece numbers to a [batch, 1, length (query), length (key)] bool mask of tokens of one piece."""
    return (piece_ids.unsqueeze(2) == piece_ids.unsqueeze(1)).unsqueeze(1)


def _check_boundaries(cu_seqlens: Tensor, batch: int, length: int, max_positions: int | None) -> None:
    sizes = cu_seqlens.diff()
    if cu_seqlens.numel() < 2 or cu_seqlens[0] != 0 or cu_seqlens[-1] != batch * length or (sizes < 0).any():
        raise ValueError(
            f"cu_seqlens must rise from 0 to batch * length = {batch * length}, not {cu_seqlens.tolist()}"
        )
    starts, ends = cu_seqlens[:-1][sizes > 0], cu_seqlens[1:][sizes > 0]
    if (starts // length != (ends - 1) // length).any():
        raise ValueError(
            f"a piece crosses a row of {length} tokens in cu_seqlens {cu_seqlens.tolist()}; "
            "every multiple of the row length must be a boundary"
        )
    if max_positions is not None and (sizes > max_positions).any():
        raise ValueError(
            f"a packed piece has {int(sizes.max())} tokens, but the network knows {max_positions} positions; "
            "pack shorter pieces or raise max_positions"
        )
