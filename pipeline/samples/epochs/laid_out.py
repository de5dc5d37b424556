"""An epoch of samples, by their places in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from pipeline.samples.spans import Rows, Spans


class Drawn(NamedTuple):
    """Some samples of an epoch."""

    rows: np.ndarray
    """[samples] int64: the row that each sample is."""
    spans: Spans
    """What they are made of."""
    pair_labels: np.ndarray | None
    """[samples] int64 (see `Packed.pair_labels`); None in formats without pairs."""


class Epoch(Protocol):
    """The samples of one epoch of one part of the mixture."""

    def draw(self, places: np.ndarray) -> Drawn:
        """The samples at some int64 places of the epoch, in any order."""
        ...


@dataclass(frozen=True, slots=True)
class LaidOut:
    """An epoch in memory."""

    layout: Rows
    order: np.ndarray
    """[num_rows] int64: which row stands at each place."""

    def draw(self, places: np.ndarray) -> Drawn:
        """The samples at some int64 places of the epoch, in any order."""
        rows = self.order[places]
        labels = self.layout.pair_labels
        return Drawn(rows, self.layout.spans(rows), None if labels is None else labels[rows])
