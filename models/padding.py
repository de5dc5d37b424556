"""Padded rows computed without their padding: only attention sees rows, everything else sees tokens.

Most of a batch of short texts is padding. Linear layers, norms and dropout treat every position alike, so they run
on the tokens alone; before attention the tokens are put back into their rows (Zeng et al. 2022, section 3.1).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Unpadded:
    """The places of the tokens of padded rows."""

    index: Tensor
    """[tokens] int64: places of the tokens in the flattened rows, ascending."""
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


def unpadded(present: Tensor | None) -> Unpadded | None:
    """The places of the tokens, where rows are padded enough for it to pay; None elsewhere.

    A compiled network keeps its padding: the number of tokens would change the shapes of every batch.
    """
    if present is None or torch.compiler.is_compiling() or present.device.type == "meta":
        return None
    places = Unpadded.of(present)
    return places if len(places.index) < WORTH_IT * present.numel() else None


WORTH_IT = 0.95
"""Largest share of tokens at which padding is left out: moving them costs about a twentieth of a layer."""
