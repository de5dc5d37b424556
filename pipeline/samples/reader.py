"""Token ids of packed rows, copied in one compiled loop from the memory-mapped files."""

from __future__ import annotations

import numpy as np
from numba import njit

from data_prep.token_store import TokenArrays
from pipeline.samples.spans import Spans
from pipeline.samples.text import count_up_to, sentences_of

_CACHE_LINE_BYTES = 64


@njit(cache=True, nogil=True)
def write_rows(
    text: TokenArrays,
    spans: Spans,
    places: np.ndarray,
    special: tuple[int, int, int],
    input_ids: np.ndarray,
    segment_ids: np.ndarray,
) -> np.ndarray:
    """Write rows to their places in a batch.

    Args:
        text: where the document of every span lies.
        spans: what the rows are made of.
        places: [rows] int64: which row of the batch each of them becomes.
        special: ids of `<s>`, `</s>` and padding.
        input_ids: [batch, length] int64, written to.
        segment_ids: [batch, length] uint8, already 0: second segments are marked in it; or [0, 0].

    Returns:
        int32 positions in the flattened batch at which pieces begin, trailing padding among them; ascending if
        `places` are.
    """
    bos, eos, pad = special
    length = input_ids.shape[1]
    first_ids = _read_ahead(text, spans)
    begins = np.empty(len(spans.documents) + len(places), dtype=np.int32)
    count = 0
    for i in range(len(places)):
        row = input_ids[places[i]]
        column = 0
        for k in range(spans.offsets[i], spans.offsets[i + 1]):
            begin = column
            if spans.opened[k]:
                begins[count] = places[i] * length + column
                count += 1
                row[column] = bos
                column += 1
            size = spans.stops[k] - spans.starts[k]
            # Counting from 0 in views of their own lets the compiler vectorise the copy.
            ids = text.ids[first_ids[k] : first_ids[k] + size]
            target = row[column : column + size]
            for token in range(size):
                target[token] = ids[token]
            column += size
            if spans.closed[k]:
                row[column] = eos
                column += 1
            if len(segment_ids) and not spans.opened[k]:
                segment_ids[places[i], begin:column] = 1
        if column < length:
            begins[count] = places[i] * length + column
            count += 1
            row[column:] = pad
    return begins[:count]


@njit(cache=True, nogil=True)
def _read_ahead(text: TokenArrays, spans: Spans) -> np.ndarray:
    """[spans + 1] int64 where in `text.ids` each span begins, and one number without meaning.

    Reads one token of every cache line on the way: documents lie all over the memory, and reads that wait for nothing
    else are answered side by side. Copying them afterwards is twice as fast.
    """
    first_ids = np.empty(len(spans.documents) + 1, dtype=np.int64)
    per_line = _CACHE_LINE_BYTES // text.ids.itemsize
    seen = 0
    for k in range(len(spans.documents)):
        first_ids[k] = text.token_starts[k] + spans.starts[k]
        for token in range(0, spans.stops[k] - spans.starts[k], per_line):
            seen |= text.ids[first_ids[k] + token]
    # Were what is read put nowhere, the compiler would leave the reading out.
    first_ids[-1] = seen
    return first_ids


@njit(cache=True, nogil=True)
def sentence_positions(text: TokenArrays, spans: Spans, places: np.ndarray, length: int) -> np.ndarray:
    """int32 positions in the flattened batch of the first token of every sentence, and of every span.

    Ascending if `places` are. The arguments are those of `write_rows`.
    """
    total = 0
    for k in range(len(spans.documents)):
        total += 1 + text.sentence_counts[k]
    found = np.empty(min(total, len(places) * length), dtype=np.int32)
    count = 0
    for i in range(len(places)):
        column = places[i] * length
        for k in range(spans.offsets[i], spans.offsets[i + 1]):
            column += 1 if spans.opened[k] else 0
            start, stop = spans.starts[k], spans.stops[k]
            starts = sentences_of(text, k)
            if stop > start:
                found[count] = column
                count += 1
            for sentence in range(count_up_to(starts, start), len(starts)):
                if starts[sentence] >= stop:
                    break
                found[count] = column + starts[sentence] - start
                count += 1
            column += stop - start + (1 if spans.closed[k] else 0)
    return found[:count]
