"""SpanBERT's objective: lengths of spans, whole words, what is around them, and what replaces them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.objectives import span
from pipeline.objectives.base import Batch
from pipeline.objectives.span import SpanMasking, corrupt, span_lengths
from pipeline.samples.noise import Noise
from pipeline.samples.packed import Packed
from tests.pipeline.packed_texts import (
    BOS,
    many_texts_per_row,
    one_text_per_row,
    vocabulary_for,
)

VOCABULARY = vocabulary_for(span, SpanMasking())
NOISE = Noise.of("train", 1)


def spans_of(batch: Batch) -> list[tuple[int, int]]:
    """First and last positions of the spans, read from `span_offsets`."""
    positions, offsets = batch.inputs["predicted_positions"], batch.inputs["span_offsets"]
    starts = np.flatnonzero(offsets == 0)
    ends = np.append(starts[1:], len(offsets)) - 1
    return [(int(positions[a]), int(positions[b])) for a, b in zip(starts, ends, strict=True)]


def test_lengths_are_geometric_up_to_ten_with_a_mean_of_3_8():
    probabilities = np.diff(span_lengths(SpanMasking()), prepend=0)
    # Joshi et al. 2020, figure 2: 22% of the spans have one word, and the mean is 3.8.
    assert probabilities[0] == pytest.approx(0.2 / (1 - 0.8**10))
    assert probabilities[1:] / probabilities[:-1] == pytest.approx(np.full(9, 0.8))
    assert probabilities @ np.arange(1, 11) == pytest.approx(3.8, abs=0.01)


@pytest.mark.parametrize("word_length", [1, 2])
def test_spans_in_text_have_these_lengths(word_length):
    vocabulary = vocabulary_for(span, SpanMasking(), word_length=word_length)
    batch = corrupt(one_text_per_row(300, 2050), NOISE, SpanMasking(), vocabulary)
    spans = spans_of(batch)
    words = np.array([(last - first + 1) // word_length for first, last in spans])
    drawn = np.bincount(words, minlength=11)[1:]
    expected = np.diff(span_lengths(SpanMasking()), prepend=0)
    assert drawn.sum() == len(words)
    assert drawn / drawn.sum() == pytest.approx(expected, abs=0.012)
    assert words.mean() == pytest.approx(3.797, abs=4 * 2.6 / len(words) ** 0.5)
    assert batch.counts["mlm"] == batch.counts["sbo"] == pytest.approx(300 * 0.15 * 2048, rel=0.01)


@pytest.mark.parametrize("length", [64, 128, 512])
def test_what_is_left_of_the_budget_biases_neither_lengths_nor_the_rate(length: int):
    """Words of one to four tokens, as WordPiece makes them."""
    generator = np.random.Generator(np.random.Philox(length))
    vocabulary = vocabulary_for(span, SpanMasking())
    starts_word = vocabulary.starts_word.copy()
    starts_word[vocabulary.ordinary] = generator.random(len(vocabulary.ordinary)) < 0.7
    batch = corrupt(
        one_text_per_row(200_000 // length, length),
        NOISE,
        SpanMasking(),
        replace(vocabulary, starts_word=starts_word),
    )
    targets, offsets = batch.inputs["targets"], batch.inputs["span_offsets"]
    words = (starts_word[targets] | (offsets == 0)).sum() / (offsets == 0).sum()
    assert words == pytest.approx(3.797, abs=0.06)
    assert len(targets) / (200_000 // length * (length - 2)) == pytest.approx(0.15, abs=0.006)


@given(st.integers(0, 999), st.integers(1, 3), st.floats(0.05, 0.5), st.booleans())
def test_spans_are_enclosed_by_tokens_of_their_piece_that_are_not_hidden(
    seed: int, word_length: int, rate: float, whole_words: bool
):
    packed = many_texts_per_row(seed, 3, 60)
    vocabulary = vocabulary_for(span, SpanMasking(), word_length=word_length)
    objective = SpanMasking(rate=rate, max_span_tokens=7, whole_words=whole_words)
    batch = corrupt(packed, NOISE, objective, vocabulary)
    positions = batch.inputs["predicted_positions"]
    hidden = set(positions.tolist())
    piece = np.searchsorted(packed.cu_seqlens, np.arange(packed.input_ids.size), side="right")
    left, right = batch.inputs["left_positions"], batch.inputs["right_positions"]
    offsets = batch.inputs["span_offsets"]
    assert sorted(hidden.union(left.tolist(), right.tolist())) == batch.inputs["read_positions"].tolist()
    assert not hidden & set(left.tolist())
    assert not hidden & set(right.tolist())
    assert (piece[left] == piece[positions]).all()
    assert (piece[right] == piece[positions]).all()
    assert (positions - left - 1 == offsets).all()
    assert (right - left - 1 <= 7).all()
    assert (offsets < right - left - 1).all()
    for begin, end in zip(left.tolist(), right.tolist(), strict=True):
        assert hidden >= set(range(begin + 1, end))


@given(st.integers(0, 999), st.integers(1, 4), st.floats(0.05, 0.5))
def test_words_are_whole_the_budget_is_kept_and_the_text_recoverable(
    seed: int, word_length: int, rate: float
):
    packed = many_texts_per_row(seed, 3, 60)
    vocabulary = vocabulary_for(span, SpanMasking(), word_length=word_length)
    batch = corrupt(packed, NOISE, SpanMasking(rate=rate), vocabulary)
    ids = packed.input_ids.reshape(-1)
    for first, last in spans_of(batch):
        assert vocabulary.starts_word[ids[first]] or ids[first - 1] == BOS
        assert vocabulary.starts_word[ids[last + 1]]
    maskable = (~vocabulary.is_special[packed.input_ids]).sum(1)
    predicted = np.bincount(batch.inputs["predicted_positions"] // 60, minlength=3)
    assert (predicted <= np.rint(rate * maskable) + 10 * word_length).all()
    restored = batch.inputs["input_ids"].copy().reshape(-1)
    restored[batch.inputs["predicted_positions"]] = batch.inputs["targets"]
    assert (restored == ids).all()
    assert not vocabulary.is_special[batch.inputs["targets"]].any()


def test_a_span_is_replaced_as_a_whole_80_percent_by_masks_10_at_random_10_not_at_all():
    batch = corrupt(one_text_per_row(800, 514), NOISE, SpanMasking(), VOCABULARY)
    read, original = batch.inputs["input_ids"].reshape(-1), one_text_per_row(800, 514).input_ids.reshape(-1)
    kinds = []
    for first, last in spans_of(batch):
        inside = slice(first, last + 1)
        is_mask, is_kept = read[inside] == VOCABULARY["mask"], read[inside] == original[inside]
        assert is_mask.all() or not is_mask.any()
        # A random token equals the one that was there in 1 of 3996 draws.
        kinds.append("mask" if is_mask.all() else "kept" if is_kept.all() else "random")
    shares = [kinds.count(kind) / len(kinds) for kind in ("mask", "random", "kept")]
    assert shares == pytest.approx([0.8, 0.1, 0.1], abs=4 * (0.16 / len(kinds)) ** 0.5)


def test_random_tokens_of_a_span_differ_among_themselves():
    objective = SpanMasking(mask_share=0.0, random_share=1.0)
    batch = corrupt(one_text_per_row(8, 258), NOISE, objective, VOCABULARY)
    read = batch.inputs["input_ids"].reshape(-1)
    longest = max(spans_of(batch), key=lambda ends: ends[1] - ends[0])
    assert len(set(read[longest[0] : longest[1] + 1].tolist())) > 3


def test_every_word_is_hidden_about_equally_often():
    batch = corrupt(one_text_per_row(4000, 42), NOISE, SpanMasking(max_words=3), VOCABULARY)
    counts = np.bincount(batch.inputs["predicted_positions"] % 42, minlength=42)[1:-1]
    # A span does not reach beyond the text, so the ends are hidden less often (as in the paper's procedure).
    inner = counts[3:-3]
    assert inner.std() / inner.mean() < 0.06
    assert counts.min() > 0.4 * inner.mean()


def test_without_the_boundary_objective_there_is_one_term():
    objective = SpanMasking(boundary=False)
    batch = corrupt(one_text_per_row(2, 64), NOISE, objective, VOCABULARY)
    assert set(batch.inputs) == {"input_ids", "predicted_positions", "targets", "read_positions"}
    assert np.array_equal(batch.inputs["read_positions"], batch.inputs["predicted_positions"])
    assert batch.counts.keys() == span.terms(objective).keys() == {"mlm"}
    assert span.terms(SpanMasking()).keys() == {"mlm", "sbo"}


def test_text_without_room_for_a_span_is_left_alone():
    # Cut after its only word: nothing behind it.
    packed = Packed(
        input_ids=np.array([[BOS, 8, BOS, 12]], dtype=np.uint32),
        cu_seqlens=np.array([0, 2, 4], dtype=np.int32),
        sample_ids=np.zeros(1, dtype=np.uint64),
        epochs=np.zeros(1, dtype=np.uint64),
    )
    batch = corrupt(packed, NOISE, SpanMasking(), VOCABULARY)
    assert batch.counts == {"mlm": 0, "sbo": 0}
    assert np.array_equal(batch.inputs["input_ids"], packed.input_ids)
