"""Positions that need not be computed: padding in all layers, and in the last layer what no head reads.

Linear layers, norms and dropout treat every position alike; only attention sees rows. So they run on the tokens alone,
which are put back into their rows before attention (Zeng et al. 2022, section 3.1), and behind the last attention they
run on the positions alone that a head reads.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Unpadded:
    """The places of the tokens of padded rows."""

    index: Tensor
    """[tokens] int64: places of the tokens in the flattened rows."""
    batch: int
    length: int

    @classmethod
    def of(cls, present: Tensor) -> Unpadded:
        """From a [batch, length] bool mask that is true at tokens. Waits for the device, once per batch."""
        return cls(present.flatten().nonzero().squeeze(1), *present.shape)

    def tokens(self, rows: Tensor) -> Tensor:
        """[batch, length, ...] to [1, tokens, ...]."""
        return rows.flatten(0, 1).index_select(0, self.index).unsqueeze(0)

    def rows(self, tokens: Tensor) -> Tensor:
        """[1, tokens, ...] to [batch, length, ...], zero at padding."""
        flat = tokens.new_zeros(self.batch * self.length, *tokens.shape[2:])
        return flat.index_copy(0, self.index, tokens.squeeze(0)).unflatten(0, (self.batch, self.length))


@dataclass(frozen=True)
class Read:
    """The positions that a head reads, where the last layer computes no others behind its attention."""

    in_rows: Tensor
    """[read] int64: their places in the flattened rows, as attention gives them."""
    in_tokens: Tensor
    """[read] int64: their places among the positions that all other blocks compute."""

    @classmethod
    def of(cls, positions: Tensor, places: Unpadded | None, in_rows: Unpadded | None) -> Read:
        """From [read] int64 positions in the flattened rows and, where padding is left out, the places of the tokens
        there and in the rows of attention."""
        if places is None or in_rows is None:
            return cls(positions, positions)
        # A row of padding alone has nothing to read: what it gives has no meaning.
        last = len(places.index) - 1
        in_tokens = torch.searchsorted(places.index, positions).clamp_max(last)
        return cls(in_rows.index[in_tokens], in_tokens)

    def of_rows(self, rows: Tensor) -> Tensor:
        """[batch, length, ...] to [1, read, ...]."""
        return rows.flatten(0, 1).index_select(0, self.in_rows).unsqueeze(0)

    def of_tokens(self, tokens: Tensor) -> Tensor:
        """What the other blocks compute, [batch, length, ...] or [1, tokens, ...], to [1, read, ...]."""
        return tokens.flatten(0, 1).index_select(0, self.in_tokens).unsqueeze(0)


def unpadded(present: Tensor | None) -> Unpadded | None:
    """The places of the tokens, where rows are padded enough for it to pay; None elsewhere.

    A compiled network keeps its padding: the number of tokens would change the shapes of every batch.
    """
    if present is None or torch.compiler.is_compiling() or present.device.type == "meta":
        return None
    places = Unpadded.of(present)
    return places if len(places.index) < WORTH_IT * present.numel() else None


WORTH_IT = 0.95
"""Largest share of positions at which the others are left out: moving them costs about a twentieth of a layer."""
