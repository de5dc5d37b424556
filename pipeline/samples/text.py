"""Documents, their sentences and tokens in compiled loops: located, cut at a sentence, copied into rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from cluster.compiled_loop import compiled_loop
from data_prep.token_files import (
    FIRST,
    ID_OFFSETS,
    IDS,
    NAMES,
    SENTENCE_OFFSETS,
    SENTENCES,
    SOURCES,
    TokenArrays,
    TokenIndex,
)
from pipeline.samples.packed import NO_SOURCE, Slices

if TYPE_CHECKING:
    from data_prep.token_store import TokenStore


@compiled_loop
def find_documents(index: TokenIndex, documents: np.ndarray) -> TokenArrays:
    """Locate the tokens of some documents: element `k` of the arrays is about `documents[k]`."""
    batches, words = index.batches, index.words
    token_starts, lengths = np.empty_like(documents), np.empty_like(documents)
    sentence_starts, sentence_counts = np.empty_like(documents), np.empty_like(documents)
    for k in range(len(documents)):
        batch = _batch_of(batches, documents[k])
        row = documents[k] - batches[batch, FIRST]
        place = batches[batch, ID_OFFSETS] + row
        token_starts[k] = batches[batch, IDS] + words[place]
        lengths[k] = words[place + 1] - words[place]
        place = batches[batch, SENTENCE_OFFSETS] + row
        sentence_starts[k] = batches[batch, SENTENCES] + words[place]
        sentence_counts[k] = words[place + 1] - words[place]
    return TokenArrays(index.ids, words, token_starts, lengths, sentence_starts, sentence_counts)


@compiled_loop
def find_tokens(index: TokenIndex, documents: np.ndarray) -> np.ndarray:
    """[documents] int64: `find_documents(index, documents).token_starts`."""
    batches = index.batches
    found = np.empty_like(documents)
    for k in range(len(documents)):
        batch = _batch_of(batches, documents[k])
        place = batches[batch, ID_OFFSETS] + documents[k] - batches[batch, FIRST]
        found[k] = batches[batch, IDS] + index.words[place]
    return found


@compiled_loop
def _batch_of(batches: np.ndarray, document: int) -> int:
    """The record batch that holds a document."""
    low, size = 0, len(batches)
    # Always as many turns, without a branch: documents come in any order, which no processor can predict.
    while size > 1:
        half = size // 2
        low += half if batches[low + half, FIRST] <= document else 0
        size -= half
    return low


@compiled_loop
def sentences_of(text: TokenArrays, document: int) -> np.ndarray:
    """[sentences] int32: the first token of every sentence of a document, ascending from 0."""
    first = text.sentence_starts[document]
    return text.words[first : first + text.sentence_counts[document]]


@compiled_loop
def count_up_to(ascending: np.ndarray, value: int) -> int:
    """The number of elements that do not exceed `value`."""
    low, high = 0, len(ascending)
    while low < high:
        middle = (low + high) // 2
        if ascending[middle] <= value:
            low = middle + 1
        else:
            high = middle
    return low


@compiled_loop
def stop_at_sentence(
    text: TokenArrays, document: int, start: int, space: int, length: int
) -> tuple[int, bool]:
    """Find the end of a slice that opens at token `start` of a document and ends where a sentence ends.

    Args:
        space: positions that are left in the row; `<s>` takes one of them, and `</s>` one where the document ends.
        length: positions of an empty row. Only a sentence that does not even fit there is cut.

    Returns:
        (one past the last token, whether `</s>` follows it); the first is `start` if no sentence fits.
    """
    size = text.lengths[document]
    if size - start + 2 <= space:
        return int(size), True
    if space < 2:
        return start, False
    starts = sentences_of(text, document)
    last = starts[count_up_to(starts, start + space - 1) - 1]
    if last > start:
        return int(last), False
    if space < length:
        return start, False
    return int(min(start + length - 1, size)), False


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
        int32 first positions of pieces in the flattened batch, trailing padding among them, and then the end of the
        batch; ascending if `places` are.
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


@compiled_loop
def write_sources(
    index: TokenIndex, slices: Slices, places: np.ndarray, numbers: np.ndarray, sources: np.ndarray
) -> None:
    """Fill in `Packed.sources` of some rows.

    Args:
        slices, places: as in `write_rows`.
        numbers: [dictionaries, names] int16 index of every name in `TokenStore.source_dictionaries`.
        sources: [batch, length] int16, written to.
    """
    batches = index.batches
    for i in range(len(places)):
        row, column = sources[places[i]], 0
        for k in range(slices.offsets[i], slices.offsets[i + 1]):
            document, begin = slices.documents[k], column
            column += slices.stops[k] - slices.starts[k]
            column += (1 if slices.opened[k] else 0) + (1 if slices.closed[k] else 0)
            batch = _batch_of(batches, document)
            name = index.words[batches[batch, SOURCES] + document - batches[batch, FIRST]]
            row[begin:column] = numbers[batches[batch, NAMES], name]
        row[column:] = NO_SOURCE


def number_sources(store: TokenStore, names: Sequence[str]) -> np.ndarray:
    """[dictionaries, longest] int16: the index in `names` of each entry of each of the store's source dictionaries;
    `NO_SOURCE` for other names."""
    places = {name: number for number, name in enumerate(names)}
    dictionaries = store.source_dictionaries
    numbers = np.full((len(dictionaries), max(map(len, dictionaries), default=0)), NO_SOURCE, dtype=np.int16)
    for row, dictionary in zip(numbers, dictionaries, strict=True):
        row[: len(dictionary)] = [places.get(name, NO_SOURCE) for name in dictionary]
    return numbers
