"""The index of an epoch: which row each place of the shuffled epoch holds, and the slices of documents in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from pipeline.samples.formats.base import Rows
from pipeline.samples.slices import Slices


class Entries(NamedTuple):
    """Some entries of an epoch's index."""

    rows: np.ndarray
    """[samples] int64: the row that each sample is."""
    slices: Slices
    """The slices of documents in these rows."""
    pair_labels: np.ndarray | None
    """[samples] int64 (see `Packed.pair_labels`); None in formats without pairs."""


class EpochIndex(Protocol):
    """The shuffled samples of one epoch of one part of the mixture."""

    def look_up(self, places: np.ndarray) -> Entries:
        """The entries at some int64 places of the epoch, in any order."""
        ...


@dataclass(frozen=True, slots=True)
class ShuffledRows:
    """The index of an epoch in memory."""

    rows: Rows
    order: np.ndarray
    """[num_rows] int64: the row at each place."""

    def look_up(self, places: np.ndarray) -> Entries:
        """The entries at some int64 places of the epoch, in any order."""
        rows = self.order[places]
        labels = self.rows.pair_labels
        return Entries(rows, self.rows.slices(rows), None if labels is None else labels[rows])
