"""Choosing what masked language models predict, and hiding it: single tokens, whole words, n-grams, spans.

Rows are [length] token ids. A word is a token that begins one, with the tokens that continue it; special tokens
separate words, and no span crosses one. Every function takes the noise `state` of one row.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from cluster.compiled_loop import compiled_loop
from pipeline.samples.noise import fold, integer, mix, uniform

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_CHOICE, _LENGTH, _SHARE, _TOKEN, _ROUNDING = (np.uint64(purpose) for purpose in range(5))


class Masking(NamedTuple):
    """The share of tokens that is predicted, and the tokens that replace them."""

    rate: float
    """Share of the tokens that are not special that is predicted."""
    mask_share: float
    """Share of the predicted tokens that become `mask`."""
    random_share: float
    """Share of the predicted tokens that become random tokens; the rest stays as it is."""
    mask: int
    is_special: np.ndarray
    """[vocabulary] bool: never predicted, never drawn."""
    starts_word: np.ndarray
    """[vocabulary] bool: begins a word."""
    ordinary: np.ndarray
    """int64 ids that random tokens are drawn from."""


class Spans(NamedTuple):
    """The lengths of spans, and the places where they may be."""

    cumulative: np.ndarray
    """float64: probability that a span has at most 1, 2, ... words; the last is 1."""
    max_tokens: int
    """Longest span in tokens."""
    enclosed: bool
    """Whether every span has a token on each side, in its piece, that is not hidden, and all spans are as long as they
    were drawn (SpanBERT). Else the last one is shortened to the budget, as is one of more than `max_tokens`, by whole
    words."""


@compiled_loop
def budget(rate: float, available: int) -> int:
    """Tokens to predict: round(rate * available), at least one where there are any."""
    return max(int(np.rint(rate * available)), min(available, 1))


@compiled_loop
def choose_tokens(ids: np.ndarray, state: np.uint64, masking: Masking) -> np.ndarray:
    """[length] bool with exactly `budget` True, every such set of tokens equally likely.

    Floyd's algorithm (Bentley and Floyd 1987, "A sample of brilliance"): one draw for each token that is chosen.
    """
    columns = np.empty(len(ids), dtype=np.int64)
    available = 0
    for column in range(len(ids)):
        columns[available] = column
        available += not masking.is_special[ids[column]]
    draws = fold(state, _CHOICE)
    chosen = np.zeros(len(ids), dtype=np.bool_)
    for item in range(available - budget(masking.rate, available), available):
        drawn = columns[integer(draw(draws, item), item + 1)]
        chosen[columns[item] if chosen[drawn] else drawn] = True
    return chosen


@compiled_loop
def choose_spans(
    ids: np.ndarray, begins_piece: np.ndarray, state: np.uint64, masking: Masking, spans: Spans
) -> np.ndarray:
    """[length] bool: spans of whole words, drawn one after the other until no word fits into the budget.

    A length is drawn, then a place, all places where the span fits being equally likely; so lengths keep their
    distribution whatever is taken already. A length that fits nowhere is halved. Where spans are enclosed, drawing ends
    as soon as the budget is reached, less the average excess of the last span: whether it ends does not depend
    on the next length, so that lengths are not biased (Wald's equation), and rows meet the budget on average.

    Args:
        begins_piece: [length + 1] bool, true where a piece begins and where the row ends.
    """
    starts, stops = words_of(ids, masking)
    available = int((stops - starts).sum())
    remaining = budget(masking.rate, available)
    if spans.enclosed and remaining > 0:
        exact = masking.rate * available - _mean_excess(spans.cumulative, stops - starts)
        remaining = max(int(np.floor(exact + uniform(fold(state, _ROUNDING)))), 1)
    chosen = np.zeros(len(ids), dtype=np.bool_)
    order = np.arange(len(starts))
    places, lengths = fold(state, _CHOICE), fold(state, _LENGTH)
    number, tries = 0, 0
    wanted = _length(spans.cumulative, lengths, number)
    while wanted > 0 and remaining > 0:
        found = False
        for turn in range(len(order)):
            other = turn + integer(draw(places, tries), len(order) - turn)
            tries += 1
            first = int(order[other])
            order[turn], order[other] = first, order[turn]
            start = starts[first]
            stop = _fit(first, wanted, starts, stops, chosen, begins_piece, remaining, spans)
            if stop > start:
                chosen[start:stop] = True
                remaining -= stop - start
                found = True
                break
        number += 1
        wanted = _length(spans.cumulative, lengths, number) if found else wanted // 2
    return chosen


@compiled_loop
def words_of(ids: np.ndarray, masking: Masking) -> tuple[np.ndarray, np.ndarray]:
    """[words] int64 first columns of the words of a row, and one past their last. A row that begins inside a word
    counts the rest of it as a word."""
    starts = np.empty(len(ids), dtype=np.int64)
    stops = np.empty(len(ids) + 1, dtype=np.int64)
    words, inside = 0, False
    for column in range(len(ids)):
        token = ids[column]
        is_text = not masking.is_special[token]
        # Without branches: whether a token begins a word cannot be foreseen.
        starts[words] = column
        words += is_text & (masking.starts_word[token] | (not inside))
        stops[words] = column + 1 if is_text else stops[words]
        inside = is_text
    return starts[:words], stops[1 : words + 1]


@compiled_loop
def _fit(
    first: int,
    wanted: int,
    starts: np.ndarray,
    stops: np.ndarray,
    chosen: np.ndarray,
    begins_piece: np.ndarray,
    remaining: int,
    spans: Spans,
) -> int:
    """End of a span of `wanted` words that begins at word `first`; its own start where there is no room for it.

    Only the budget and `max_tokens` make it shorter than wanted, and those not where spans are enclosed.
    """
    start, limit = starts[first], spans.max_tokens if spans.enclosed else min(remaining, spans.max_tokens)
    if chosen[start] or stops[first] - start > limit:
        return start
    if spans.enclosed and (begins_piece[start] or chosen[start - 1]):
        return start
    last = first
    while last - first + 1 < wanted:
        if last + 1 == len(starts) or stops[last] != starts[last + 1] or chosen[stops[last]]:
            return start
        if stops[last + 1] - start > limit:
            if spans.enclosed:
                return start
            break
        last += 1
    stop = stops[last]
    if spans.enclosed and (begins_piece[stop] or chosen[stop]):
        return start
    return stop


@compiled_loop
def _mean_excess(cumulative: np.ndarray, widths: np.ndarray) -> float:
    """Expected overshoot in tokens, because the last span may exceed the budget: E[t (t - 1)] / 2 E[t] for the tokens t
    of a span whose words have independent widths."""
    words, squares, before = 0.0, 0.0, 0.0
    for number in range(len(cumulative)):
        share = cumulative[number] - before
        words, squares = words + share * (number + 1), squares + share * (number + 1) ** 2
        before = cumulative[number]
    width = widths.mean()
    return ((widths * widths).mean() / width + (squares / words - 1.0) * width - 1.0) / 2.0


@compiled_loop
def _length(cumulative: np.ndarray, state: np.uint64, number: int) -> int:
    """Length in words of the span with a number."""
    if len(cumulative) == 1:
        return 1
    share, length = uniform(draw(state, number)), 1
    while share >= cumulative[length - 1]:
        length += 1
    return length


@compiled_loop
def draw(state: np.uint64, number: int) -> np.uint64:
    """64 random bits: the output `number` of SplitMix64 begun at `state`. Where draws are only counted it is as good
    as `fold`, at half the cost."""
    return mix(state + np.uint64(number) * _GAMMA)


@compiled_loop
def choose_positions(
    input_ids: np.ndarray, begins_piece: np.ndarray, states: np.ndarray, masking: Masking, spans: Spans | None
) -> np.ndarray:
    """[predicted] int64: ascending positions of the predicted tokens in the flattened batch.

    Args:
        input_ids: [batch, length] int64.
        begins_piece: [batch * length + 1] bool, true where a piece begins and at the end; read for enclosed spans only.
        states: [batch] uint64 noise of each row.
        spans: lengths of words, n-grams or spans; None for single tokens. numba compiles each way by itself.
    """
    batch, length = input_ids.shape
    most = budget(masking.rate, length)
    if spans is not None:
        most += spans.max_tokens if spans.enclosed else 0
    # One more, because a column is written before it is known whether it is chosen.
    positions = np.empty(batch * min(most, length) + 1, dtype=np.int64)
    found = 0
    for row in range(batch):
        begin = row * length
        if spans is None:
            chosen = choose_tokens(input_ids[row], states[row], masking)
        else:
            inside = begins_piece[begin : begin + length + 1]
            chosen = choose_spans(input_ids[row], inside, states[row], masking, spans)
        for column in range(length):
            positions[found] = begin + column
            found += chosen[column]
    return positions[:found]


@compiled_loop
def hide_tokens(
    input_ids: np.ndarray, positions: np.ndarray, anchors: np.ndarray, states: np.ndarray, masking: Masking
) -> tuple[np.ndarray, np.ndarray]:
    """The ids that the network reads [batch, length], and the original tokens [predicted]; int64.

    Args:
        positions: [predicted] ascending positions in the flattened batch.
        anchors: [predicted] a position of the same row; those that share one are replaced alike.
        states: [batch] uint64 noise of each row.
    """
    length = input_ids.shape[1]
    corrupted = input_ids.astype(np.int64)
    targets = np.empty(len(positions), dtype=np.int64)
    last_row, kinds, tokens = -1, np.uint64(0), np.uint64(0)
    for number in range(len(positions)):
        row, column = positions[number] // length, positions[number] % length
        if row != last_row:
            last_row, kinds, tokens = row, fold(states[row], _SHARE), fold(states[row], _TOKEN)
        targets[number] = corrupted[row, column]
        share = uniform(draw(kinds, anchors[number] % length))
        if share < masking.mask_share:
            corrupted[row, column] = masking.mask
        elif share < masking.mask_share + masking.random_share:
            drawn = integer(draw(tokens, column), len(masking.ordinary))
            corrupted[row, column] = masking.ordinary[drawn]
    return corrupted, targets
