"""The formats `segment_pair` and `sentence_pair`: one pair `<s> A </s> B </s>` per row, the rest padding.

Liu et al. 2019, section 4.2, after Devlin et al. 2019, section 3.1 and appendix A.2: chunks of consecutive sentences
are split in two at a random sentence (`segment_pair`), or are two sentences (`sentence_pair`). Relations:

- `nsp`: in half of the pairs B follows A (label 0), in half it comes from another document (label 1).
- `sop` (Lan et al. 2020, section 3.1): both come from one chunk, in half of the pairs in the wrong order (label 1);
  half of the documents are cut into chunks from their end on, so that lengths do not reveal the order.

BERT's released code draws a random B anywhere, long enough to fill the row, and continues after A with the text that it
did not use. Here the chunks of a document are fixed, and those that an epoch chooses for label 1 exchange their second
segments with others of like length, so that text is still seen once an epoch. A chunk of a single sentence (the last
one of a document) has no second segment: two of them give the A and the B of a random pair. `arrange` chooses so that
half of the pairs of any length are random, and leaves single sentences out where they would be more. With `sop`,
which has no use for them, they all are, as is one that finds no partner. Where one document has more than half of the
random pairs, some repeat a B of another document.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from cluster.artefacts.errors import ConfigError
from cluster.compiled_loop import compiled_loop
from data_prep.token_files import TokenArrays
from pipeline.samples.formats.pair_chunks import (
    SPECIAL_TOKENS,
    Segments,
    removed_from_each,
    removed_in_front,
    segment_chunks,
    sentence_chunks,
)
from pipeline.samples.noise import Noise, fold, integer, shuffle
from pipeline.samples.packed import CLOSED, DOCUMENT, MARKS, OPENED, START, STOP, EpochRows, FormatInput
from pipeline.samples.text import sentences_of

BLOCK = 64
"""Pairs of about one length, half of them random; even, so that half of all pairs are random."""
_ATTEMPTS = 64
"""Exchanges that are tried for a pair from one document; each rarely fails."""
_NEAR = 8
"""Distance of the first exchanges, in pairs; doubled after every fourth attempt."""

_SHORTEST_ROW = SPECIAL_TOKENS + 2
"""Each segment keeps at least one token."""


Draws = Callable[[str], Noise]
"""The noise for a purpose in an epoch."""


class PairFormat:
    """Documents, cut into pairs of segments."""

    def __init__(self, given: FormatInput, chunks: Segments) -> None:
        """
        Args:
            chunks: consecutive sentences, by number.

        Raises:
            ConfigError: the documents give no pairs of the wanted relation.
        """
        if given.length < _SHORTEST_ROW:
            raise ConfigError(
                f"A row of {given.length} tokens has no place for a pair with its special tokens.",
                next_step=f"set batch.sequence_length to {_SHORTEST_ROW} or more",
            )
        self._given = given
        num_sentences = chunks.stops - chunks.starts
        self._several = chunks.take(num_sentences > 1)
        self._next_or_random = given.relation == "nsp"
        if not len(self._several.documents):
            raise ConfigError(
                f"No document of {given.name} has two sentences, so there are no pairs of them.",
                next_step="prepare the data with `sentences: blingfire`, or choose a format without pairs",
            )
        if self._next_or_random and len(np.unique(chunks.documents)) < 2:
            raise ConfigError(
                f"All sentences of {given.name} are of one document, so that no pair can be random.",
                next_step="prepare more documents, or choose `sop` or a format without pairs",
            )
        self.num_rows = len(self._several.documents)
        if not self._next_or_random:
            return
        several = _whole(given.text, self._several)
        self._singles = singles = _whole(given.text, chunks.take(num_sentences == 1))
        # Random halves of the single sentences make pairs, the same in all epochs; an odd one is left out.
        shuffled = _shuffled(len(singles.documents), given.order.noise("single", 0))
        half = len(shuffled) // 2
        a, b = singles.take(shuffled[:half]), singles.take(shuffled[half : 2 * half])
        self._couples = a, b
        lengths = np.concatenate([several.stops - several.starts, a.stops - a.starts + b.stops - b.starts])
        self._kept, self._must_be_random = arrange(
            np.minimum(lengths, given.length - SPECIAL_TOKENS),
            np.arange(len(lengths)) >= len(several.documents),
            given.order.noise("blocks", 0),
        )
        self.num_rows = len(self._kept)

    def epoch(self, number: int) -> EpochRows:
        """Split the chunks, choose which become wrong pairs, and shorten pairs that are too long."""
        noise = partial(self._given.order.noise, epoch=number)
        a, b = _split(self._given.text, self._several, np.uint64(noise("split").state))
        if self._next_or_random:
            right, a_wrong, b_wrong = self._random(a, b, noise)
        else:
            shuffled = _shuffled(len(a.documents), noise("chosen"))
            wrong, right = shuffled[: self.num_rows // 2], shuffled[self.num_rows // 2 :]
            a_wrong, b_wrong = b.take(wrong), a.take(wrong)
        labels = np.repeat(np.arange(2), [len(right), len(a_wrong.documents)])
        a, b = Segments.join(a.take(right), a_wrong), Segments.join(b.take(right), b_wrong)
        _truncate(a, b, self._given.length - SPECIAL_TOKENS, np.uint64(noise("truncate").state))
        table = np.empty((len(labels), 2, 4), dtype=a.documents.dtype)
        # `<s>` opens the pair, `</s>` closes both segments.
        for side, segments, marks in ((0, a, OPENED + CLOSED), (1, b, CLOSED)):
            for column, values in (
                (DOCUMENT, segments.documents),
                (START, segments.starts),
                (STOP, segments.stops),
            ):
                table[:, side, column] = values
            table[:, side, MARKS] = marks
        return EpochRows(table.reshape(-1, 4), 2 * np.arange(len(labels) + 1), pair_labels=labels)

    def _random(self, a: Segments, b: Segments, noise: Draws) -> tuple[np.ndarray, Segments, Segments]:
        """Indices of the chunks that stay in order, and the segments of random pairs."""
        candidates = Segments.join(b, self._singles)
        # Half of the pairs of single sentences are swapped in each epoch.
        one, other = self._couples
        turned = noise("turned").at(np.arange(len(one.documents))).integers(2) == 1
        a = Segments.join(a, Segments(*(np.where(turned, y, x) for x, y in zip(one, other, strict=True))))
        b = Segments.join(b, Segments(*(np.where(turned, x, y) for x, y in zip(one, other, strict=True))))
        is_random = draw_random(self._must_be_random, noise("chosen"))
        right, wrong = self._kept[~is_random], self._kept[is_random]
        a_wrong, b_wrong = _exchange(a.take(wrong), b.take(wrong), noise("random"))
        return right, a_wrong, _replace_own(a_wrong, b_wrong, candidates, noise("random"))


def segment_pair(given: FormatInput) -> PairFormat:
    """Pairs that fill a row between them, of some sentences each."""
    state = np.uint64(given.order.noise("chunks", 0).state)
    chunks = segment_chunks(
        given.text,
        given.documents,
        given.length,
        state,
        either_way=given.relation == "sop",
        shared_targets=given.shared_targets,
    )
    return PairFormat(given, chunks)


def sentence_pair(given: FormatInput) -> PairFormat:
    """Pairs of two natural sentences."""
    return PairFormat(given, sentence_chunks(given.text, given.documents))


def _shuffled(count: int, noise: Noise) -> np.ndarray:
    """int64 [count]: a permutation."""
    numbers = np.arange(count)
    shuffle(numbers, np.uint64(noise.state))
    return numbers


def _exchange(a: Segments, b: Segments, noise: Noise) -> tuple[Segments, Segments]:
    """Give every first segment the second segment of another pair, from another document wherever possible.

    It is nearly as long as its own second segment, so that the length of a pair does not reveal its label.
    """
    cycle = _shuffled(len(a.documents), noise)
    cycle = cycle[np.argsort((b.stops - b.starts)[cycle], kind="stable")]
    a, b = a.take(cycle), b.take(np.roll(cycle, 1))
    partners = np.arange(len(cycle))
    _separate_documents(a.documents, b.documents, partners, np.uint64(noise.at("part").state))
    return a, b.take(partners)


def _replace_own(a: Segments, b: Segments, candidates: Segments, noise: Noise) -> Segments:
    """Replace second segments that still share the document of the first by `candidates` of other documents."""
    chosen = [values.copy() for values in b]
    left = np.flatnonzero(a.documents == b.documents)
    for document in np.unique(a.documents[left]):
        pairs = left[a.documents[left] == document]
        others = np.flatnonzero(candidates.documents != document)
        drawn = others[noise.at("replace", pairs).integers(len(others))]
        for values, candidate in zip(chosen, candidates, strict=True):
            values[pairs] = candidate[drawn]
    return Segments(*chosen)


@compiled_loop
def _separate_documents(a: np.ndarray, b: np.ndarray, partners: np.ndarray, state: np.uint64) -> None:
    """Exchange `partners` until no pair is of one document; a few tries each, with neighbours first.

    Args:
        a: [pairs] documents of the first segments.
        b: [pairs] documents of the second segments.
        partners: [pairs] int64 which of `b` each of `a` has; changed in place.
    """
    for i in range(len(a)):
        own = fold(state, np.uint64(i))
        for attempt in range(_ATTEMPTS):
            if a[i] != b[partners[i]]:
                break
            reach = min(_NEAR << (attempt // 4), len(a))
            j = (i + integer(fold(own, np.uint64(attempt)), reach)) % len(a)
            if a[i] != b[partners[j]] and a[j] != b[partners[i]]:
                partners[i], partners[j] = partners[j], partners[i]


@compiled_loop
def _token_of(text: TokenArrays, document: int, sentence: int) -> int:
    """First token of a sentence; the length of the document for the sentence after the last."""
    starts = sentences_of(text, document)
    return int(starts[sentence] if sentence < len(starts) else text.lengths[document])


@compiled_loop
def _whole(text: TokenArrays, chunks: Segments) -> Segments:
    """The tokens of every chunk."""
    starts, stops = np.empty_like(chunks.starts), np.empty_like(chunks.stops)
    for i in range(len(starts)):
        starts[i] = _token_of(text, chunks.documents[i], chunks.starts[i])
        stops[i] = _token_of(text, chunks.documents[i], chunks.stops[i])
    return Segments(chunks.documents, starts, stops)


@compiled_loop
def _split(text: TokenArrays, chunks: Segments, state: np.uint64) -> tuple[Segments, Segments]:
    """Every chunk as two segments, the first of a random number of sentences."""
    a = _whole(text, chunks)
    b = Segments(a.documents, a.starts.copy(), a.stops.copy())
    for i in range(len(a.documents)):
        num_sentences = chunks.stops[i] - chunks.starts[i]
        middle = chunks.starts[i] + 1 + integer(fold(state, np.uint64(i)), num_sentences - 1)
        a.stops[i] = b.starts[i] = _token_of(text, chunks.documents[i], middle)
    return a, b


@compiled_loop
def _truncate(a: Segments, b: Segments, longest: int, state: np.uint64) -> None:
    """Shorten, in place, every pair to `longest` tokens."""
    for i in range(len(a.documents)):
        own = fold(state, np.uint64(i))
        from_a, from_b = removed_from_each(a.stops[i] - a.starts[i], b.stops[i] - b.starts[i], longest)
        in_front_a = removed_in_front(from_a, fold(own, np.uint64(0)))
        in_front_b = removed_in_front(from_b, fold(own, np.uint64(1)))
        a.starts[i] += in_front_a
        a.stops[i] -= from_a - in_front_a
        b.starts[i] += in_front_b
        b.stops[i] -= from_b - in_front_b


def arrange(lengths: np.ndarray, must_be_random: np.ndarray, noise: Noise) -> tuple[np.ndarray, np.ndarray]:
    """Sort pairs into blocks of about one length; at most half of a block must be random.

    Args:
        lengths: [pairs] int64 tokens of each pair.
        must_be_random: [pairs] bool.
        noise: decides among equal lengths.

    Returns:
        The pairs that stay, [kept] int64 ascending in length, and which of them must be random; BLOCK of them are a
        block, the last one may be shorter.
    """
    order = np.lexsort((noise.at(np.arange(len(lengths))).bits(), lengths))
    kept = order[_keep(must_be_random[order])]
    return kept, must_be_random[kept]


def draw_random(must_be_random: np.ndarray, noise: Noise) -> np.ndarray:
    """[kept] bool: half of each block: all that must be random, and others chosen by `noise`."""
    count = len(must_be_random)
    blocks = np.arange(count) // BLOCK
    draws = noise.at(np.arange(count)).uniform()
    order = np.lexsort((np.where(must_be_random, -1.0, draws), blocks))
    found = np.empty(count, dtype=bool)
    starts = np.arange(0, count, BLOCK)
    num_random = np.minimum(count - starts, BLOCK) // 2
    found[order] = np.arange(count) % BLOCK < num_random[blocks]
    return found


@compiled_loop
def _keep(must_be_random: np.ndarray) -> np.ndarray:
    """[pairs] bool: False for pairs that must be random and would be in the second half of a block."""
    kept = np.ones(len(must_be_random), dtype=np.bool_)
    size = random = 0
    for i in range(len(must_be_random)):
        kept[i] = not must_be_random[i] or random < BLOCK // 2
        random += kept[i] and must_be_random[i]
        size += kept[i]
        if size == BLOCK:
            size = random = 0
    i = len(must_be_random)
    while random > size // 2:
        i -= 1
        if kept[i] and must_be_random[i]:
            kept[i] = False
            size, random = size - 1, random - 1
    return kept
