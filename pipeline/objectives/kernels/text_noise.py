"""BART's five noises on one piece of text (Lewis et al. 2020, section 2.2), and their composition.

Text is an array of ids without the `<s>` and `</s>` around it. Where several documents share a piece, the special
tokens between them stay: nothing here hides, drops or draws them, but permutation and rotation carry them along.
No noise makes a text longer.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from cluster.compiled_loop import compiled_loop
from pipeline.objectives.encoder_decoder import TextPairs, empty_pairs, first_pairs
from pipeline.samples.noise import choose, fold, integer, poisson, shuffle, uniform

_PERMUTE, _INFILL, _MASK, _DELETE, _ROTATE, _WHETHER = (np.uint64(purpose) for purpose in range(6))
_FIRST, _SECOND, _THIRD, _FOURTH = (np.uint64(draw) for draw in range(4))

SPECIAL, INSIDE_WORD, STARTS_WORD = range(3)
"""Kinds of tokens: not to be touched, inside a word, or the first of a word."""


class TextNoise(NamedTuple):
    """The amount of each noise, and what tokens are."""

    permuted_share: float
    infilling_rate: float
    masking_rate: float
    deletion_rate: float
    rotation_probability: float
    span_lengths: np.ndarray
    """`poisson_table` of the lengths of infilled spans."""
    overlapping_spans: bool
    """Whether infilled spans may lie over each other."""
    bos: int
    eos: int
    pad: int
    mask: int
    kinds: np.ndarray
    """[vocabulary] uint8: `SPECIAL`, `INSIDE_WORD` or `STARTS_WORD` for every token."""


@compiled_loop
def add_text_noise(text: np.ndarray, sentences: np.ndarray, noise: TextNoise, state: np.uint64) -> np.ndarray:
    """The corrupted text: sentences permuted, spans infilled, tokens masked, tokens deleted, then rotated.

    Args:
        text: [length] int64.
        sentences: [sentences] int64 ascending positions in `text` where sentences start.
    """
    if noise.permuted_share > 0 and len(sentences) > 1:
        text = permute_sentences(text, sentences, noise.permuted_share, fold(state, _PERMUTE))
    if noise.infilling_rate > 0:
        text = infill(text, noise, fold(state, _INFILL))
    if noise.masking_rate > 0:
        text = mask_tokens(text, noise, fold(state, _MASK))
    if noise.deletion_rate > 0:
        text = delete_tokens(text, noise, fold(state, _DELETE))
    if noise.rotation_probability > 0 and uniform(fold(state, _WHETHER)) < noise.rotation_probability:
        text = rotate(text, fold(state, _ROTATE))
    return text


@compiled_loop
def permute_sentences(text: np.ndarray, sentences: np.ndarray, share: float, state: np.uint64) -> np.ndarray:
    """Sentence permutation: `share` of the sentences, rounded up, change places among themselves at random."""
    count = len(sentences)
    moved = np.flatnonzero(choose(_round_up(share * count), count, fold(state, _FIRST)))
    places = moved.copy()
    shuffle(moved, fold(state, _SECOND))
    order = np.arange(count)
    order[places] = moved
    permuted = np.empty_like(text)
    filled = 0
    for sentence in order:
        start = sentences[sentence] if sentence > 0 else 0
        stop = sentences[sentence + 1] if sentence + 1 < count else len(text)
        permuted[filled : filled + stop - start] = text[start:stop]
        filled += stop - start
    return permuted


@compiled_loop
def infill(text: np.ndarray, noise: TextNoise, state: np.uint64) -> np.ndarray:
    """Text infilling: each span of whole words becomes one mask, a span of length 0 is a mask inserted between words.

    The text between two special tokens is infilled by itself.
    """
    infilled = np.empty_like(text)
    words = np.empty(len(text) + 1, dtype=np.int64)
    filled, position = 0, 0
    while position < len(text):
        num_words = _find_words(text[position:], noise, words)
        if num_words == 0:
            infilled[filled] = text[position]
            filled, position = filled + 1, position + 1
            continue
        stretch = text[position : position + words[num_words]]
        stretch_state = fold(state, np.uint64(position))
        filled += _infill_stretch(stretch, words[: num_words + 1], noise, stretch_state, infilled[filled:])
        position += len(stretch)
    return infilled[:filled]


@compiled_loop
def _find_words(text: np.ndarray, noise: TextNoise, words: np.ndarray) -> int:
    """The number of words before the first special token; `words` takes where they begin, and where the last ends.

    The first token begins a word, whatever it is.
    """
    count = 0
    for position in range(len(text)):
        kind = noise.kinds[text[position]]
        if kind == SPECIAL:
            words[count] = position
            return count
        words[count] = position
        count += int(position == 0 or kind == STARTS_WORD)
    words[count] = len(text)
    return count


@compiled_loop
def _infill_stretch(
    text: np.ndarray, words: np.ndarray, noise: TextNoise, state: np.uint64, out: np.ndarray
) -> int:
    """Infill text without special tokens; returns how many ids were written to `out`.

    As in BART's released code, lengths are drawn until they cover the budget of words, and the last is cut to fit.
    The spans then lie anywhere with equal chances, but never over each other unless `noise.overlapping_spans` says so,
    so that the rate and the lengths are those that were asked for.
    """
    num_words = len(words) - 1
    budget = _round_up(noise.infilling_rate * num_words)
    lengths, num_inserted = _span_lengths(budget, noise.span_lengths, fold(state, _FIRST))
    if noise.overlapping_spans:
        return _infill_overlapping(text, words, lengths, num_inserted, noise.mask, state, out)
    num_masks = len(lengths) + num_inserted
    is_mask = choose(num_masks, num_words - budget + num_masks, fold(state, _SECOND))
    is_inserted = choose(num_inserted, num_masks, fold(state, _THIRD))
    # The length that was cut to fit is the last one drawn; turning the list spreads it over the text.
    span = integer(fold(state, _FOURTH), len(lengths))
    word, mask, start, filled = 0, 0, 0, 0
    for item in range(len(is_mask)):
        if not is_mask[item]:
            word += 1
            continue
        for position in range(start, words[word]):
            out[filled] = text[position]
            filled += 1
        out[filled] = noise.mask
        filled += 1
        if not is_inserted[mask]:
            word += lengths[span]
            span = span + 1 if span + 1 < len(lengths) else 0
        mask += 1
        start = words[word]
    out[filled : filled + len(text) - start] = text[start:]
    return filled + len(text) - start


@compiled_loop
def _infill_overlapping(
    text: np.ndarray,
    words: np.ndarray,
    lengths: np.ndarray,
    num_inserted: int,
    mask: int,
    state: np.uint64,
    out: np.ndarray,
) -> int:
    """Infill as BART's released code does (fairseq's denoising_dataset.py): spans begin at different words and end with
    the text, and one that begins inside another leaves no mask. Masks are inserted between any tokens that remain, no
    more than keep the text from becoming longer."""
    num_words = len(words) - 1
    begins = choose(len(lengths), num_words, fold(state, _SECOND))
    # The length that was cut to fit is the last one drawn; turning the list spreads it over the text.
    span = integer(fold(state, _FOURTH), max(len(lengths), 1))
    kept = np.empty_like(text)
    filled, covered = 0, 0
    for word in range(num_words):
        if word >= covered and begins[word]:
            kept[filled] = mask
            filled += 1
        elif word >= covered:
            for position in range(words[word], words[word + 1]):
                kept[filled] = text[position]
                filled += 1
        if begins[word]:
            covered = max(covered, word + lengths[span])
            span = span + 1 if span + 1 < len(lengths) else 0
    num_inserted = min(num_inserted, len(text) - filled)
    is_inserted = choose(num_inserted, filled + num_inserted, fold(state, _THIRD))
    token = 0
    for item in range(len(is_inserted)):
        out[item] = mask if is_inserted[item] else kept[token]
        token += not is_inserted[item]
    return len(is_inserted)


@compiled_loop
def _span_lengths(budget: int, cumulative: np.ndarray, state: np.uint64) -> tuple[np.ndarray, int]:
    """Lengths above 0 that sum to `budget`, and the number of spans of length 0 among them.

    Spans of length 0 are left out where they would make the text longer.
    """
    lengths = np.empty(budget, dtype=np.int64)
    drawn, spans, empty, covered = 0, 0, 0, 0
    while covered < budget:
        length = poisson(cumulative, fold(state, np.uint64(drawn)))
        drawn += 1
        if length == 0:
            empty += 1
            continue
        lengths[spans] = min(length, budget - covered)
        covered += lengths[spans]
        spans += 1
    return lengths[:spans], min(empty, budget - spans)


@compiled_loop
def mask_tokens(text: np.ndarray, noise: TextNoise, state: np.uint64) -> np.ndarray:
    """Token masking: random tokens become the mask."""
    masked = text.copy()
    masked[_choose_tokens(text, noise.kinds, noise.masking_rate, state)] = noise.mask
    return masked


@compiled_loop
def delete_tokens(text: np.ndarray, noise: TextNoise, state: np.uint64) -> np.ndarray:
    """Token deletion: random tokens are removed; the network must find out where."""
    deleted = _choose_tokens(text, noise.kinds, noise.deletion_rate, state)
    return text[~deleted]


@compiled_loop
def rotate(text: np.ndarray, state: np.uint64) -> np.ndarray:
    """Document rotation: a token, chosen uniformly, comes first; the tokens before it follow the end."""
    if len(text) == 0:
        return text
    first = integer(fold(state, _FIRST), len(text))
    return np.concatenate((text[first:], text[:first]))


@compiled_loop
def _choose_tokens(text: np.ndarray, kinds: np.ndarray, rate: float, state: np.uint64) -> np.ndarray:
    """[length] bool: round(rate * n) of the n tokens that are text."""
    places = np.empty(len(text), dtype=np.int64)
    count = 0
    for position in range(len(text)):
        places[count] = position
        count += int(kinds[text[position]] != SPECIAL)
    chosen = np.zeros(len(text), dtype=np.bool_)
    chosen[places[:count]] = choose(int(np.rint(rate * count)), count, state)
    return chosen


@compiled_loop
def _round_up(value: float) -> int:
    """Round up, with a tolerance for 0.3 * 10 being a little over 3."""
    return int(np.ceil(value - 1e-9))


@compiled_loop
def denoising_pairs(
    input_ids: np.ndarray,
    cu_seqlens: np.ndarray,
    sentence_starts: np.ndarray,
    states: np.ndarray,
    noise: TextNoise,
    tags: np.ndarray,
    with_origins: bool,
) -> TextPairs:
    """Every piece that is not padding, corrupted and as it was.

    Args:
        input_ids: [batch, length] int64.
        cu_seqlens: [pieces + 1] int32.
        sentence_starts: [sentences] int32.
        states: [batch] uint64 noise of each row. A piece's noise also depends on its column.
        tags: [batch] int64 id that ends each row's texts in place of `<s>` before them, on both sides; -1 for none.
        with_origins: fill in `TextPairs.origins`.
    """
    batch, length = input_ids.shape
    flat = input_ids.reshape(-1)
    pieces = len(cu_seqlens) - 1
    most = batch * length + pieces
    pairs = empty_pairs(most, most, pieces, with_origins)
    sources, targets, source_lengths, target_lengths, rows, origins = pairs
    found, read, written, sentence = 0, 0, 0, 0
    for piece in range(pieces):
        start, stop = int(cu_seqlens[piece]), int(cu_seqlens[piece + 1])
        row, column = int(start // length), int(start % length)
        while stop > start and flat[stop - 1] == noise.pad:
            stop -= 1
        if stop == start:
            continue
        begin = start + 1 if flat[start] == noise.bos else start
        end = stop - 1 if stop > begin and flat[stop - 1] == noise.eos else stop
        while sentence < len(sentence_starts) and sentence_starts[sentence] < begin:
            sentence += 1
        first_sentence = sentence
        while sentence < len(sentence_starts) and sentence_starts[sentence] < end:
            sentence += 1
        text = flat[begin:end]
        sentences = sentence_starts[first_sentence:sentence].astype(np.int64) - begin
        corrupted = add_text_noise(text, sentences, noise, fold(states[row], np.uint64(column)))
        opened, closed = begin > start and tags[row] < 0, stop > end
        source_lengths[found] = _framed(corrupted, opened, closed, tags[row], noise, sources[read:])
        target_lengths[found] = _framed(text, opened, closed, tags[row], noise, targets[written:])
        rows[found] = row
        if with_origins:
            own = origins[written : written + target_lengths[found]]
            own[:] = np.arange(len(own)) + (start if opened else begin)
            if tags[row] >= 0:
                # The tag is no token of the row; it counts as the last token of the document that it ends.
                own[-1] = stop - 1
        read += source_lengths[found]
        written += target_lengths[found]
        found += 1
    return first_pairs(pairs, found, read, written)


@compiled_loop
def _framed(text: np.ndarray, opened: bool, closed: bool, tag: int, noise: TextNoise, out: np.ndarray) -> int:
    """Write `<s> text </s> tag` as far as wanted; returns how many ids that is."""
    filled = 0
    if opened:
        out[filled] = noise.bos
        filled += 1
    out[filled : filled + len(text)] = text
    filled += len(text)
    if closed:
        out[filled] = noise.eos
        filled += 1
    if tag >= 0:
        out[filled] = tag
        filled += 1
    return filled
