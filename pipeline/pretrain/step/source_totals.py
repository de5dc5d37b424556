"""Losses of the sources of the data over micro-batches, and their means over the global batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from models.losses import sums_by_group


class SourceTotals:
    """What a step, or an evaluation, adds up on a rank, by source; nothing leaves the device."""

    def __init__(self, names: Sequence[str], weights: Mapping[str, float], device: torch.device) -> None:
        """
        Args:
            names: the sources, in the order of their numbers.
            weights: by loss term, its weight in the loss; sources are told apart by the first term alone.
        """
        self._keys = [f"{next(iter(weights))}/loss/{name}" for name in names]
        self._sums = torch.zeros((len(names), 2), dtype=torch.float64, device=device)

    def add(self, each: Tensor, sources: Tensor) -> None:
        """Add a micro-batch.

        Args:
            each: [predictions] losses of the first term, one by one (`models.losses.EACH`).
            sources: [predictions] integer numbers of their sources (`Batch.sources`).
        """
        self._sums += sums_by_group(each, sources, len(self._keys))

    @property
    def sums(self) -> Tensor:
        """[2 x sources] float64: of every source, the sum of its losses and its predictions; to be added up over
        ranks."""
        return self._sums.flatten()

    def means(self, sums: Sequence[float]) -> dict[str, float]:
        """`TERM/loss/SOURCE` of every source that something was predicted of; TERM is the first.

        Args:
            sums: `sums` of all ranks together.
        """
        rows = zip(self._keys, sums[::2], sums[1::2], strict=True)
        return {key: total / count for key, total, count in rows if count}
