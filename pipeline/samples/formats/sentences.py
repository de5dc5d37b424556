"""The formats `doc_sentences` and `sentences`: pieces that are whole sentences, packed best-fit into rows.

`doc_sentences` (Liu et al. 2019, section 4.2): as many sentences of one document as fit in a row; `</s>` closes the
document. Where the paper adds samples to batches of short inputs, rows are filled with pieces of other documents.
`sentences`: each a piece of its own, as a bidirectional language model reads them (Peters et al. 2018, section 3).

Only a sentence that is longer than a row is cut. Every token is seen exactly once an epoch.
"""

from __future__ import annotations

import numpy as np

from cluster.compiled_loop import compiled_loop
from data_prep.token_arrays import TokenArrays
from pipeline.samples.formats.base import FormatInput
from pipeline.samples.formats.packing import PackedFormat, add_slice, add_whole_or_cut
from pipeline.samples.text import sentences_of, stop_at_sentence


def doc_sentences(given: FormatInput) -> PackedFormat:
    """Pack slices of some sentences of one document."""
    return PackedFormat(_cut_documents, given.text, given)


def sentences(given: FormatInput) -> PackedFormat:
    """Pack slices of one sentence."""
    return PackedFormat(_cut_sentences, given.text, given)


@compiled_loop
def _cut_documents(text: TokenArrays, documents: np.ndarray, length: int, table: np.ndarray) -> int:
    """Write the slices, or only count them; see `PackedFormat`."""
    count = 0
    for document in documents:
        start = 0
        while start < text.lengths[document]:
            stop, closed = stop_at_sentence(text, document, start, length, length)
            count = add_slice(table, count, document, start, stop, closed)
            start = stop
    return count


@compiled_loop
def _cut_sentences(text: TokenArrays, documents: np.ndarray, length: int, table: np.ndarray) -> int:
    """Write the slices, or only count them; see `PackedFormat`."""
    count = 0
    for document in documents:
        starts = sentences_of(text, document)
        for i in range(len(starts)):
            stop = starts[i + 1] if i + 1 < len(starts) else text.lengths[document]
            count = add_whole_or_cut(table, count, document, int(starts[i]), int(stop), length)
    return count
