"""Token ids of packed rows, copied in one compiled loop from the memory-mapped files."""

from __future__ import annotations

import numpy as np

from cluster.compiled_loop import compiled_loop
from data_prep.token_arrays import TokenArrays, TokenIndex
from pipeline.samples.rows import Slices
from pipeline.samples.text import count_up_to, find_tokens, sentences_of


@compiled_loop
def span_of(numbers: np.ndarray) -> tuple[int, int]:
    """The smallest and the largest of [n] int64 numbers, n > 0."""
    first = last = numbers[0]
    for number in numbers:
        first, last = min(first, number), max(last, number)
    return first, last


@compiled_loop
def read_rows(
    index: TokenIndex,
    slices: Slices,
    places: np.ndarray,
    special: tuple[int, int, int],
    input_ids: np.ndarray,
    segment_ids: np.ndarray,
) -> np.ndarray:
    """Write rows of a store's documents to their places in a batch; arguments and result as in `write_rows`."""
    first_ids = find_tokens(index, slices.documents)
    for k in range(len(first_ids)):
        first_ids[k] += slices.starts[k]
    return write_rows(index.ids, first_ids, slices, places, special, input_ids, segment_ids)


@compiled_loop
def write_rows(
    ids: np.ndarray,
    first_ids: np.ndarray,
    slices: Slices,
    places: np.ndarray,
    special: tuple[int, int, int],
    input_ids: np.ndarray,
    segment_ids: np.ndarray,
) -> np.ndarray:
    """Write rows to their places in a batch.

    Args:
        ids: uint16 or uint32 tokens of all documents.
        first_ids: [slices] int64: where in `ids` each slice begins.
        slices: the slices of documents in the rows.
        places: [rows] int64: which row of the batch each of them becomes.
        special: ids of `<s>`, `</s>` and padding.
        input_ids: [batch, length] int64, written to.
        segment_ids: [batch, length] uint8, already 0: second segments are marked in it; or [0, 0].

    Returns:
        int32 positions in the flattened batch at which pieces begin, trailing padding among them, and then the end of
        the batch; ascending if `places` are.
    """
    bos, eos, pad = special
    length = input_ids.shape[1]
    begins = np.empty(len(first_ids) + len(places) + 1, dtype=np.int32)
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
            source = ids[first_ids[k] : first_ids[k] + size]
            target = row[column : column + size]
            for token in range(size):
                target[token] = source[token]
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
    begins[count] = input_ids.size
    return begins[: count + 1]


@compiled_loop
def sentence_positions(text: TokenArrays, slices: Slices, places: np.ndarray, length: int) -> np.ndarray:
    """int32 positions in the flattened batch of the first token of every sentence, and of every slice.

    Ascending if `places` are. `text` is about the document of every slice; other arguments as in `write_rows`.
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
