"""The format `best_fit`: whole documents, packed so that rows are full (Ding et al. 2024, "Fewer truncations improve
language modeling").

A document that is longer than a row is cut into full rows and a rest; all others stay whole. Every token is seen
exactly once an epoch.
"""

from __future__ import annotations

import numpy as np

from cluster.compiled_loop import compiled_loop
from pipeline.samples.formats.base import FormatInput
from pipeline.samples.formats.packing import PackedFormat, add_whole_or_cut


def best_fit(given: FormatInput) -> PackedFormat:
    """Pack the documents."""
    return PackedFormat(_cut_documents, given.lengths, given)


@compiled_loop
def _cut_documents(lengths: np.ndarray, documents: np.ndarray, length: int, table: np.ndarray) -> int:
    """Write the slices, or only count them; see `PackedFormat`."""
    count = 0
    for document in documents:
        size = int(lengths[document])
        if size > 0:
            count = add_whole_or_cut(table, count, document, 0, size, length)
    return count
