"""The format `best_fit`: whole documents, packed so that rows are full (Ding et al. 2024, "Fewer truncations improve
language modeling").

A document that is longer than a row is cut into full rows and a rest; all others stay whole. Every token is seen
exactly once an epoch.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from data_prep.token_store import TokenArrays
from pipeline.samples.formats.bins import BinLayout, add_whole_or_cut, pieces_to_fill
from pipeline.samples.formats.material import Material


def best_fit(material: Material) -> BinLayout:
    """The layout of a part of a store."""
    text, documents, length = material.text, material.documents, material.length
    pieces = pieces_to_fill(_cut_documents(text, documents, length, pieces_to_fill(0)))
    _cut_documents(text, documents, length, pieces)
    return BinLayout(pieces, length, material.order)


@njit(cache=True, nogil=True)
def _cut_documents(text: TokenArrays, documents: np.ndarray, length: int, pieces: np.ndarray) -> int:
    """Fill in the pieces (or, where there is no place for any, only count them)."""
    count = 0
    for document in documents:
        size = int(text.lengths[document])
        if size > 0:
            count = add_whole_or_cut(pieces, count, document, 0, size, length)
    return count
