"""T5's span corruption (Raffel et al. 2020, sections 3.1.4 and 3.3.4), also as UL2 parametrises it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from cluster.compiled_loop import compiled_loop
from pipeline.objectives.encoder_decoder import TextPairs, empty_pairs, first_pairs
from pipeline.samples.noise import fold, integer, partition

_HIDDEN, _SHOWN, _SUFFIX = (np.uint64(purpose) for purpose in range(3))


class Denoisers(NamedTuple):
    """Ways to corrupt spans, an entry for each."""

    rates: np.ndarray
    """float64: share of the tokens that is hidden."""
    mean_lengths: np.ndarray
    """float64: mean length of the spans, in tokens."""
    is_suffix: np.ndarray
    """bool: whether the one span is the end of the text, of any length from 1 with the mean that the rate gives."""
    free_ends: np.ndarray
    """bool: whether spans may lie anywhere; T5's texts begin with visible tokens and end with a span."""
    modes: np.ndarray
    """int64: id of the token that opens the source; -1 for none."""


class SpanTokens(NamedTuple):
    """Ids that span corruption writes or passes over."""

    bos: int
    eos: int
    pad: int
    sentinels: np.ndarray
    """int64 in the order of use."""
    final_sentinel: bool
    """Whether the target ends with the next sentinel before `</s>`."""


@compiled_loop
def span_counts(length: int, rate: float, mean_length: float) -> tuple[int, int]:
    """Tokens that are hidden of a text of `length` >= 2 tokens, and the number of spans they make.

    T5's arithmetic: both are rounded, and neither the hidden nor the shown part is ever empty.
    """
    hidden = min(max(int(np.rint(length * rate)), 1), length - 1)
    spans = max(int(np.rint(hidden / mean_length)), 1)
    return hidden, min(spans, hidden, length - hidden)


@compiled_loop
def suffix_limit(length: int, rate: float) -> int:
    """Longest suffix that is hidden: lengths 1 to this one have `rate * length` as their mean."""
    return min(max(2 * int(np.rint(length * rate)) - 1, 1), length - 1)


@compiled_loop
def target_lengths(size: int, states: np.ndarray, choices: np.ndarray, denoisers: Denoisers) -> np.ndarray:
    """[rows] int64: tokens of the target, with `</s>`, of a text of `size` >= 2 tokens that begins each row.

    Args:
        states: [rows] uint64 noise of each row.
        choices: [rows] int64 denoiser of each row.
    """
    found = np.empty(len(states), dtype=np.int64)
    for row in range(len(states)):
        _, hidden = _span_lengths(size, denoisers, choices[row], fold(states[row], np.uint64(0)))
        found[row] = hidden.sum() + len(hidden) + 1
    return found


@compiled_loop
def span_corruption_pairs(
    input_ids: np.ndarray,
    cu_seqlens: np.ndarray,
    states: np.ndarray,
    choices: np.ndarray,
    denoisers: Denoisers,
    tokens: SpanTokens,
    with_origins: bool,
) -> TextPairs:
    """Every piece with two tokens of text or more, its spans taken out.

    Args:
        input_ids: [batch, length] int64.
        cu_seqlens: [pieces + 1] int32.
        states: [batch] uint64 noise of each row. A piece's noise also depends on its column.
        choices: [batch] int64 denoiser of each row.
        with_origins: fill in `TextPairs.origins`.
    """
    batch, length = input_ids.shape
    flat = input_ids.reshape(-1)
    pieces = len(cu_seqlens) - 1
    num_sources, num_targets = batch * length + 3 * pieces, 2 * batch * length + 3 * pieces
    pairs = empty_pairs(num_sources, num_targets, pieces, with_origins)
    sources, targets, source_lengths, target_lengths, rows, origins = pairs
    found, read, written = 0, 0, 0
    for piece in range(pieces):
        start, stop = int(cu_seqlens[piece]), int(cu_seqlens[piece + 1])
        row, column = int(start // length), int(start % length)
        text, places = _text_of(flat[start:stop], tokens)
        size = len(text)
        if size < 2:
            continue
        state = fold(states[row], np.uint64(column))
        shown, hidden = _span_lengths(size, denoisers, choices[row], state)
        source_lengths[found], target_lengths[found] = _take_out(
            text,
            shown,
            hidden,
            int(denoisers.modes[choices[row]]),
            tokens,
            sources[read:],
            targets[written:],
        )
        rows[found] = row
        if with_origins:
            own = origins[written : written + target_lengths[found]]
            _write_origins(shown, hidden, size, own)
            for place in range(len(own)):
                inside = places[own[place]] if len(places) == size else places[0] + own[place]
                own[place] = start + inside
        read += source_lengths[found]
        written += target_lengths[found]
        found += 1
    return first_pairs(pairs, found, read, written)


@compiled_loop
def _text_of(piece: np.ndarray, tokens: SpanTokens) -> tuple[np.ndarray, np.ndarray]:
    """The piece without `<s>`, `</s>` and padding, and where in the piece its tokens are; only the first of these
    places where the others follow it one by one."""
    # In the width of the ids, so that the comparisons are done many at a time.
    bos, eos, pad = np.uint32(tokens.bos), np.uint32(tokens.eos), np.uint32(tokens.pad)
    is_text = (piece != bos) & (piece != eos) & (piece != pad)
    start, stop = 0, len(piece)
    while start < stop and not is_text[start]:
        start += 1
    while start < stop and not is_text[stop - 1]:
        stop -= 1
    if is_text[start:stop].all():
        return piece[start:stop], np.full(1, start)
    return piece[is_text], np.flatnonzero(is_text)


@compiled_loop
def _span_lengths(
    size: int, denoisers: Denoisers, choice: int, state: np.uint64
) -> tuple[np.ndarray, np.ndarray]:
    """Lengths of the visible and of the hidden spans, which alternate.

    Two random compositions, as in T5's `random_spans_noise_mask`: all masks with these counts are equally likely.
    With free ends there is one more visible span, and the first and last may be empty.
    """
    rate = denoisers.rates[choice]
    if denoisers.is_suffix[choice]:
        suffix = 1 + integer(fold(state, _SUFFIX), suffix_limit(size, rate))
        return np.full(1, size - suffix), np.full(1, suffix)
    num_hidden, spans = span_counts(size, rate, denoisers.mean_lengths[choice])
    hidden = partition(num_hidden, spans, fold(state, _HIDDEN))
    if not denoisers.free_ends[choice]:
        return partition(size - num_hidden, spans, fold(state, _SHOWN)), hidden
    shown = partition(size - num_hidden + 2, spans + 1, fold(state, _SHOWN))
    shown[0] -= 1
    shown[-1] -= 1
    return shown, hidden


@compiled_loop
def _take_out(
    text: np.ndarray,
    shown: np.ndarray,
    hidden: np.ndarray,
    mode: int,
    tokens: SpanTokens,
    source: np.ndarray,
    target: np.ndarray,
) -> tuple[int, int]:
    """Write the text with a sentinel for each span, and each span after its sentinel; returns both lengths."""
    read, written, position = 0, 0, 0
    if mode >= 0:
        source[read] = mode
        read += 1
    for span in range(len(hidden)):
        for _ in range(shown[span]):
            source[read] = text[position]
            read, position = read + 1, position + 1
        source[read] = target[written] = tokens.sentinels[span]
        read, written = read + 1, written + 1
        for _ in range(hidden[span]):
            target[written] = text[position]
            written, position = written + 1, position + 1
    for place in range(position, len(text)):
        source[read] = text[place]
        read += 1
    if tokens.final_sentinel:
        target[written] = tokens.sentinels[len(hidden)]
        written += 1
    source[read] = target[written] = tokens.eos
    return read + 1, written + 1


@compiled_loop
def _write_origins(shown: np.ndarray, hidden: np.ndarray, size: int, origins: np.ndarray) -> None:
    """Index in the text of each target of `_take_out`. A sentinel counts as the first token of its span, the
    end of the target as the last token."""
    written, position = 0, 0
    for span in range(len(hidden)):
        position += shown[span]
        origins[written] = position
        written += 1
        for _ in range(hidden[span]):
            origins[written] = position
            written, position = written + 1, position + 1
    origins[written:] = size - 1
