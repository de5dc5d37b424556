"""Token ids of packed rows, copied in one compiled loop from the memory-mapped files."""

from __future__ import annotations

import numpy as np
from numba import njit

from data_prep.token_store import TokenArrays
from pipeline.samples.rows import Slices
from pipeline.samples.text import count_up_to, sentences_of

_CACHE_LINE_BYTES = 64


@njit(cache=True, nogil=True)
def write_rows(
    text: TokenArrays,
    slices: Slices,
    places: np.ndarray,
    special: tuple[int, int, int],
    input_ids: np.ndarray,
    segment_ids: np.ndarray,
) -> np.ndarray:
    """Write rows to their places in a batch.

    Args:
        text: the document of every slice.
        slices: the slices of documents in the rows.
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
    first_ids = _read_ahead(text, slices)
    begins = np.empty(len(slices.documents) + len(places), dtype=np.int32)
    count = 0
    for i in range(len(places)):
        row = input_ids[places[i]]
        column = 0
        for k in range(slices.offsets[i], slices.offsets[i + 1]):
            begin = column
            if slices.opened[k]:
                begins[count] = places[i] * length + column
                count += 1
                row[column] = bos
                column += 1
            size = slices.stops[k] - slices.starts[k]
            # Counting from 0 in views of their own lets the compiler vectorise the copy.
            ids = text.ids[first_ids[k] : first_ids[k] + size]
            target = row[column : column + size]
            for token in range(size):
                target[token] = ids[token]
            column += size
            if slices.closed[k]:
                row[column] = eos
                column += 1
            if len(segment_ids) and not slices.opened[k]:
                segment_ids[places[i], begin:column] = 1
        if column < length:
            begins[count] = places[i] * length + column
            count += 1
            row[column:] = pad
    return begins[:count]


@njit(cache=True, nogil=True)
def _read_ahead(text: TokenArrays, slices: Slices) -> np.ndarray:
    """[slices + 1] int64 where in `text.ids` each slice begins, and one number without meaning.

    Reads one token of every cache line on the way: documents are scattered over memory, and the processor answers
    independent reads side by side. Copying them afterwards is twice as fast.
    """
    first_ids = np.empty(len(slices.documents) + 1, dtype=np.int64)
    per_line = _CACHE_LINE_BYTES // text.ids.itemsize
    seen = 0
    for k in range(len(slices.documents)):
        first_ids[k] = text.token_starts[k] + slices.starts[k]
        for token in range(0, slices.stops[k] - slices.starts[k], per_line):
            seen |= text.ids[first_ids[k] + token]
    # The compiler would drop reads whose result is not used.
    first_ids[-1] = seen
    return first_ids


@njit(cache=True, nogil=True)
def sentence_positions(text: TokenArrays, slices: Slices, places: np.ndarray, length: int) -> np.ndarray:
    """int32 positions in the flattened batch of the first token of every sentence, and of every slice.

    Ascending if `places` are. Arguments as in `write_rows`.
    """
    total = 0
    for k in range(len(slices.documents)):
        total += 1 + text.sentence_counts[k]
    found = np.empty(min(total, len(places) * length), dtype=np.int32)
    count = 0
    for i in range(len(places)):
        column = places[i] * length
        for k in range(slices.offsets[i], slices.offsets[i + 1]):
            column += 1 if slices.opened[k] else 0
            start, stop = slices.starts[k], slices.stops[k]
            starts = sentences_of(text, k)
            if stop > start:
                found[count] = column
                count += 1
            for sentence in range(count_up_to(starts, start), len(starts)):
                if starts[sentence] >= stop:
                    break
                found[count] = column + starts[sentence] - start
                count += 1
            column += stop - start + (1 if slices.closed[k] else 0)
    return found[:count]
