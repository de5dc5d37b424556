"""Model FLOPs of a micro-batch, as `trace` counts them.

Counted are the multiplications and additions of matrix products, forward and backward (Chowdhery et al. 2022,
appendix B): recomputation to save memory does not count. Attention counts every pair of tokens of the same document
once, also where a causal mask hides half of them, as there; pairs that packing hides between documents do not count.
Neither do, in the last layer and the vocabulary projection, positions that no head reads. The 6 N of papers counts all
positions everywhere, so at the same speed the MFU of a masked language model is lower here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor
from torch.utils.flop_counter import flop_registry

_aten = torch.ops.aten


@dataclass(slots=True)
class Flops:
    """Operations of forward and backward of a micro-batch, counted up while it runs."""

    pieces: tuple[np.ndarray, ...] = ()
    """Lengths of the pieces on each side of the network, as of encoder and decoder; none where rows are not packed."""
    products: int = 0
    """Of matrix products outside of attention."""
    attention: int = 0
    """Of the two products of attention, scores and mixing, for pairs of tokens that see each other."""

    @classmethod
    def of(cls, inputs: Mapping[str, np.ndarray]) -> Self:
        """Nothing counted yet of a micro-batch with these arguments of the network."""
        packed = (array for name, array in inputs.items() if name.endswith("cu_seqlens"))
        return cls(tuple(np.diff(array.astype(np.int64)) for array in packed))

    @property
    def total(self) -> int:
        """All of them."""
        return self.products + self.attention

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> None:
        """Count an attention of [batch, heads, length, head size] or, packed, of [tokens, heads, head size]."""
        heads, size = query.shape[1], query.shape[-1]
        tokens, keys = (each.numel() // (each.shape[1] * each.shape[-1]) for each in (query, key))
        # Two products of 2 operations a pair forward, and twice as many backward.
        times = 3 if torch.is_grad_enabled() and query.requires_grad else 1
        pairs = self._pairs(tokens, keys, len(query))
        self.attention += times * 2 * heads * pairs * (size + value.shape[-1])

    def _pairs(self, queries: int, keys: int, rows: int) -> int:
        """Pairs of tokens of the same piece: of queries of one side and keys of the same or of the other side."""
        sides = [
            next((each for each in self.pieces if each.sum() == count), None) for count in (queries, keys)
        ]
        if sides[0] is None or sides[1] is None or len(sides[0]) != len(sides[1]):
            return queries * keys // rows
        return int((sides[0] * sides[1]).sum())


def product_formula(func: Any) -> Callable[..., int] | None:
    """PyTorch's formula for the operations of a matrix product, which it does not apply to those that add in place;
    None for other operations, and for batched products, of which attention alone is made."""
    packet = func._overloadpacket
    return flop_registry.get(_IN_PLACE.get(packet, packet)) if packet not in _OF_ATTENTION else None


_IN_PLACE = {_aten.addmm_: _aten.addmm}
_OF_ATTENTION = {
    packet for packet in flop_registry if any(part in str(packet) for part in ("bmm", "attention", "attn"))
}
