"""The documents of a token store as plain arrays, which compiled loops are fastest with."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class TokenArrays(NamedTuple):
    """The documents of a store for compiled loops, which are fastest with plain arrays."""

    ids: np.ndarray
    """uint16 or uint32, read-only: the memory from the first to the last of the mapped files. Only what the other
    arrays point at may be read: between the files there may be nothing."""
    words: np.ndarray
    """int32, read-only: the same memory as positions of sentences."""
    token_starts: np.ndarray
    """[num_documents] int64: where the ids of each document begin in `ids`."""
    lengths: np.ndarray
    """[num_documents] int32, or int64 from `find_documents`: how many they are."""
    sentence_starts: np.ndarray
    """[num_documents] int64: where in `words` the positions of its sentences begin."""
    sentence_counts: np.ndarray
    """[num_documents] int32, or int64 from `find_documents`: how many they are."""

    def of(self, documents: np.ndarray) -> TokenArrays:
        """The arrays restricted to some documents: element `k` describes `documents[k]`."""
        return TokenArrays(self.ids, self.words, *(values[documents] for values in self[2:]))


FIRST, ID_OFFSETS, IDS, SENTENCE_OFFSETS, SENTENCES, SOURCES, NAMES = range(7)
"""Columns of `TokenIndex.batches`: the batch's first document; where in `words` the offsets of its documents' ids
begin, and where in `ids` offset 0 points; where in `words` the offsets of their sentences begin, and where offset 0
points; where in `words` the numbers of their sources begin, and which of `source_dictionaries` has their names."""


class TokenIndex(NamedTuple):
    """Places of Arrow's own offsets by record batch: enough to look documents up, and soon made."""

    ids: np.ndarray
    """As in `TokenArrays`."""
    words: np.ndarray
    """As in `TokenArrays`; Arrow's offsets lie in the same memory."""
    batches: np.ndarray
    """[record batches, 7] int64, in the order of the documents; the columns are named above."""
