"""The interface of a format, which cuts documents into rows, anew in every epoch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from data_prep.token_files import TokenArrays
from pipeline.samples.packed import Relation
from pipeline.samples.rows import EpochRows
from pipeline.samples.shuffle import StoreOrder


@dataclass(frozen=True, slots=True)
class FormatInput:
    """Documents of one store, to be cut into rows."""

    lengths: np.ndarray
    """[documents of the store] int32 tokens of each."""
    arrays: Callable[[], TokenArrays]
    """Gives `text`, which takes six times the memory of `lengths`."""
    documents: np.ndarray
    """[documents] int32 (int64 where indices exceed it): ascending indices."""
    length: int
    """Positions of a row."""
    order: StoreOrder
    """All randomness comes from here."""
    name: str
    """The documents in error messages, such as the path of the store."""
    relation: Relation | None = None
    """Only for formats of pairs."""
    shared_targets: bool = False
    """Only for `segment_pair`: all pairs of a document aim at one length."""

    @property
    def text(self) -> TokenArrays:
        """Locations of the tokens and sentences of all documents of the store, for formats that look at sentences."""
        return self.arrays()


class RowFormat(Protocol):
    """Documents, cut into rows by one format."""

    @property
    def num_rows(self) -> int:
        """Rows of an epoch, the same in all of them."""
        ...

    def epoch(self, number: int) -> EpochRows:
        """The rows of an epoch, before they are shuffled."""
        ...
