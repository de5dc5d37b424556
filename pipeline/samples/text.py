"""Documents and their sentences in compiled loops, and the sentence at which a slice ends."""

from __future__ import annotations

import numpy as np

from cluster.compiled_loop import compiled_loop
from data_prep.token_arrays import (
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
def find_source_numbers(index: TokenIndex, documents: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """[documents] the number of each document's source.

    Args:
        numbers: [dictionaries, names] the number of every name in `TokenStore.source_dictionaries`.
    """
    batches = index.batches
    found = np.empty(len(documents), dtype=numbers.dtype)
    for k in range(len(documents)):
        batch = _batch_of(batches, documents[k])
        name = index.words[batches[batch, SOURCES] + documents[k] - batches[batch, FIRST]]
        found[k] = numbers[batches[batch, NAMES], name]
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
