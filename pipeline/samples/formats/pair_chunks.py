"""Chunks of consecutive sentences, which become pairs of segments, and how much of a pair is cut off.

Chunks are a function of document and seed alone. BERT's released code shortens a pair by one token at a time, from the
longer segment (from the second where both are equal), at its front or its back by the toss of a coin, until the pair
fits; here the outcome of this process is computed directly.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from cluster.compiled_loop import compiled_loop
from data_prep.token_files import TokenArrays
from pipeline.samples.noise import fold, integer, uniform
from pipeline.samples.shuffle import index_type
from pipeline.samples.text import sentences_of

SHORT_SHARE = 0.1
"""Share of the chunks that aim at a random shorter length (Devlin et al. 2019, appendix A.2)."""
SPECIAL_TOKENS = 3
"""`<s> A </s> B </s>`."""
_SHORT, _TARGET = np.uint64(0), np.uint64(1)
_BACKWARD = np.uint64(1 << 63)
"""Not the index of a sentence, because those draw the targets of chunks."""


class Segments(NamedTuple):
    """Stretches of one document each, in tokens; chunks in sentences."""

    documents: np.ndarray
    """[segments] numbers, int32 or int64: see `index_type`."""
    starts: np.ndarray
    """[segments] int32 first token, or sentence."""
    stops: np.ndarray
    """[segments] int32 one past the last."""

    @classmethod
    def empty(cls, count: int, num_documents: int) -> Segments:
        """Empty arrays for `count` segments in a store of `num_documents` documents."""
        documents = np.empty(count, dtype=index_type(num_documents))
        return cls(documents, np.empty(count, dtype=np.int32), np.empty(count, dtype=np.int32))

    def take(self, chosen: np.ndarray) -> Segments:
        """The segments with the given numbers, or where a mask is true."""
        return Segments(*(values[chosen] for values in self))

    @classmethod
    def join(cls, *parts: Segments) -> Segments:
        """The segments of all parts, in order."""
        return cls(*(np.concatenate(values) for values in zip(*parts, strict=True)))


def segment_chunks(
    text: TokenArrays,
    documents: np.ndarray,
    length: int,
    state: np.uint64,
    *,
    either_way: bool,
    shared_targets: bool = False,
) -> Segments:
    """Cut documents into chunks of sentences that reach a target length, mostly the length of a row.

    The sentence that reaches the target tends to be a long one. With `either_way`, half of the documents are cut from
    their end on, so that it is as often the first of its chunk as the last, and says nothing about the order.

    As BERT's released code makes them, with two differences: there a document has one target in each copy of the data,
    here each chunk has its own, unless `shared_targets` says otherwise; and a chunk of one long sentence, which there
    can only become a random pair, takes the next sentence as well.
    """
    num_documents = len(text.lengths)
    count = _cut_segments(
        text, documents, length, state, either_way, shared_targets, Segments.empty(0, num_documents)
    )
    chunks = Segments.empty(count, num_documents)
    _cut_segments(text, documents, length, state, either_way, shared_targets, chunks)
    return chunks


def sentence_chunks(text: TokenArrays, documents: np.ndarray) -> Segments:
    """Two sentences each; the last of a document may be alone."""
    sentences = text.sentence_counts[documents]
    counts = (sentences + 1) // 2
    owner = np.repeat(documents, counts)
    first = 2 * (np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts))
    stops = np.minimum(first + 2, text.sentence_counts[owner])
    owner = owner.astype(index_type(len(text.lengths)))
    return Segments(owner, first.astype(np.int32), stops.astype(np.int32))


@compiled_loop
def _cut_segments(
    text: TokenArrays,
    documents: np.ndarray,
    length: int,
    state: np.uint64,
    either_way: bool,
    shared_targets: bool,
    chunks: Segments,
) -> int:
    """Write the chunks, or only count them if `chunks` is empty."""
    count = 0
    for document in documents:
        starts = sentences_of(text, document)
        own = fold(state, np.uint64(document))
        backward = either_way and integer(fold(own, _BACKWARD), 2) == 1
        first, tokens = 0, 0
        target = _target_length(fold(own, np.uint64(0)), length - SPECIAL_TOKENS)
        for i in range(len(starts)):
            sentence = len(starts) - 1 - i if backward else i
            stop = starts[sentence + 1] if sentence + 1 < len(starts) else text.lengths[document]
            tokens += stop - starts[sentence]
            if i + 1 < len(starts) and (i == first or tokens < target):
                continue
            if len(chunks.documents):
                chunks.documents[count] = document
                chunks.starts[count] = sentence if backward else first
                chunks.stops[count] = chunks.starts[count] + i + 1 - first
            first, tokens = i + 1, 0
            if not shared_targets:
                target = _target_length(fold(own, np.uint64(first)), length - SPECIAL_TOKENS)
            count += 1
    return count


@compiled_loop
def _target_length(state: np.uint64, longest: int) -> int:
    if uniform(fold(state, _SHORT)) >= SHORT_SHARE:
        return longest
    return 2 + integer(fold(state, _TARGET), longest - 1)


_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)
_BITS = 64


@compiled_loop
def removed_from_each(first: int, second: int, longest: int) -> tuple[int, int]:
    """The tokens that segments of the given lengths lose until they have `longest` together.

    The longer one shrinks to the length of the other; then they take turns, the second before the first.
    """
    excess = max(first + second - longest, 0)
    alone = min(excess, abs(first - second))
    rest = excess - alone
    from_first, from_second = rest // 2, rest - rest // 2
    return (from_first + alone, from_second) if first > second else (from_first, from_second + alone)


@compiled_loop
def removed_in_front(removed: int, state: np.uint64) -> int:
    """The number of a segment's removed tokens that are taken from its front: heads among `removed` fair coins.

    Coin `k` is bit `k % 64` of the draw `fold(state, k // 64)`.
    """
    heads = 0
    for word in range((removed + _BITS - 1) // _BITS):
        coins = fold(state, np.uint64(word))
        left = removed - word * _BITS
        if left < _BITS:
            coins &= _ALL >> np.uint64(_BITS - left)
        heads += _ones(coins)
    return heads


@compiled_loop
def _ones(bits: np.uint64) -> int:
    """The number of bits that are set."""
    count = 0
    while bits:
        bits &= bits - np.uint64(1)
        count += 1
    return count
