"""The interface of a format, which cuts documents into rows, anew in every epoch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from data_prep.token_store import TokenArrays
from pipeline.samples.epochs.shuffle import StoreOrder
from pipeline.samples.reading import Relation
from pipeline.samples.slices import Slices


@dataclass(frozen=True, slots=True)
class FormatInput:
    """Documents of one store, to be cut into rows."""

    text: TokenArrays
    documents: np.ndarray
    """[documents] int64 ascending numbers."""
    length: int
    """Positions of a row."""
    order: StoreOrder
    """All randomness comes from here."""
    name: str
    """The documents in error messages, such as the path of the store."""
    relation: Relation | None = None
    """Only for formats of pairs."""


class Rows(Protocol):
    """The rows of one epoch, before they are shuffled."""

    @property
    def pair_labels(self) -> np.ndarray | None:
        """[num_rows] int64 labels of pairs (see `Packed.pair_labels`); None in formats without pairs."""
        ...

    def slices(self, rows: np.ndarray) -> Slices:
        """The slices of documents in the rows with the given int64 numbers."""
        ...


class RowFormat(Protocol):
    """Documents, cut into rows by one format."""

    @property
    def num_rows(self) -> int:
        """Rows of an epoch, the same in all of them."""
        ...

    def epoch(self, number: int) -> Rows:
        """The rows of an epoch."""
        ...
