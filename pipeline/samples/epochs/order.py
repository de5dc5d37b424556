"""Which row of which store is sample number `k`: pure functions of (token fingerprint, seed, k).

Within a store, every epoch draws a new order of documents and a new order of the rows packed from them (long
documents fill many rows, which must not follow each other in training). Between stores, a fixed schedule
shares out the samples by weight. Nothing is stored but `k`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pipeline.samples.epochs.draw_order import sorted_by_draw
from pipeline.samples.noise.noise import Noise

SCHEDULE_PERIOD = 1024
"""Samples after which the mixture's schedule repeats; weights are honoured to 1 / SCHEDULE_PERIOD."""


class Place(NamedTuple):
    """Where a sample lies in one store."""

    epoch: int
    row: int


@dataclass(frozen=True, slots=True)
class StoreOrder:
    """The order of one store's documents and rows."""

    fingerprint: str
    """The token store's fingerprint."""
    seed: int

    def noise(self, purpose: str, epoch: int) -> Noise:
        """What is drawn for a purpose in an epoch."""
        return Noise.of("order", self.fingerprint, self.seed, purpose, epoch)

    def documents(self, epoch: int, documents: np.ndarray) -> np.ndarray:
        """`documents` (ascending int64 document numbers) in the order of `epoch`; int32 where that is enough."""
        dtype = np.int32 if len(documents) == 0 or documents[-1] < 2**31 else np.int64
        return sorted_by_draw(np.uint64(self.noise("documents", epoch).state), documents.astype(dtype))

    def rows(self, epoch: int, num_rows: int) -> np.ndarray:
        """int64 [num_rows]: the row that stands at each place of `epoch`."""
        return sorted_by_draw(np.uint64(self.noise("rows", epoch).state), np.arange(num_rows))


class Mixture:
    """A deterministic schedule that draws from several stores in proportion to their weights."""

    def __init__(self, weights: Sequence[float], seed: int) -> None:
        shares = np.asarray(weights, dtype=np.float64)
        self._period = SCHEDULE_PERIOD if len(shares) > 1 else 1
        self._counts = _largest_remainder(shares / shares.sum(), self._period)
        turns = np.repeat(np.arange(len(shares)), self._counts)
        self._turns = turns[Noise.of("mixture", seed).permutation(self._period)]
        before = np.cumsum(self._turns[:, None] == np.arange(len(shares)), axis=0)
        self._earlier = before[np.arange(self._period), self._turns] - 1

    def locate(self, samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The store that gives each of the samples, and which of that store's own (0, 1, 2, ...) it is; all int64."""
        if len(self._counts) == 1:
            return np.zeros_like(samples), samples
        cycles, turns = np.divmod(samples, self._period)
        stores = self._turns[turns]
        return stores, cycles * self._counts[stores] + self._earlier[turns]


def _largest_remainder(shares: np.ndarray, total: int) -> np.ndarray:
    """Whole counts that add up to `total`, as near to `shares * total` as can be, and at least 1 each."""
    exact = shares * total
    counts = np.maximum(np.floor(exact).astype(np.int64), 1)
    while (excess := counts.sum() - total) != 0:
        error = exact - counts
        chosen = np.argmax(error) if excess < 0 else np.argmin(np.where(counts > 1, error, np.inf))
        counts[chosen] += -np.sign(excess)
    return counts
