"""What a format lays out, and the errors that all of them share."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from data_prep.token_store import TokenArrays
from pipeline.samples.epochs.order import StoreOrder
from pipeline.samples.reading import Relation


@dataclass(frozen=True, slots=True)
class Material:
    """Some documents of one store, to be laid out in rows."""

    text: TokenArrays
    documents: np.ndarray
    """[documents] int64 ascending numbers."""
    length: int
    """Positions of a row."""
    order: StoreOrder
    """All randomness comes from here."""
    name: str
    """What errors call it, such as the path of the store."""
    relation: Relation | None = None
    """Only of formats of pairs."""
