"""Masked language modelling: counts, shares, whole words, pairs, and what must never be touched."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from pipeline.objectives import mlm
from pipeline.objectives.base import Batch
from pipeline.objectives.mlm import MaskedLM, Units, corrupt
from pipeline.objectives.vocabulary import make_vocabulary
from pipeline.samples.noise import Noise
from pipeline.samples.packed import Packed
from tests.pipeline.packed_texts import (
    NUM_TOKENS,
    in_epoch,
    many_texts_per_row,
    one_text_per_row,
    vocabulary_for,
)

VOCABULARY = vocabulary_for(mlm, MaskedLM())
NOISE = Noise.of("train", 1)
UNITS = st.sampled_from(["token", "word", "ngram"])


def positions_of(batch: Batch) -> np.ndarray:
    return batch.inputs["predicted_positions"]


def read_there(batch: Batch) -> np.ndarray:
    return batch.inputs["input_ids"].reshape(-1)[positions_of(batch)]


def same(first: Batch, second: Batch) -> bool:
    equal = [np.array_equal(first.inputs[name], second.inputs[name]) for name in first.inputs]
    return first.inputs.keys() == second.inputs.keys() and all(equal)


def words_in(ids: np.ndarray, word_length: int) -> list[np.ndarray]:
    """Positions of the words of a flattened batch, found by another way than the kernels'."""
    found: list[list[int]] = []
    for position, token in enumerate(ids.tolist()):
        if VOCABULARY.is_special[token]:
            found.append([])
        elif token % word_length == 0 or not found or not found[-1]:
            found.append([position])
        else:
            found[-1].append(position)
    return [np.asarray(word) for word in found if word]


@given(st.integers(0, 999), st.integers(1, 5), st.integers(8, 90), st.floats(0.01, 0.9), UNITS)
def test_text_is_recoverable_and_specials_are_never_predicted(
    seed: int, batch: int, length: int, rate: float, units: Units
):
    packed = many_texts_per_row(seed, batch, length)
    masked = corrupt(packed, NOISE, MaskedLM(rate=rate, units=units), VOCABULARY)
    restored = masked.inputs["input_ids"].copy().reshape(-1)
    restored[positions_of(masked)] = masked.inputs["targets"]
    assert (restored == packed.input_ids.reshape(-1)).all()
    assert not VOCABULARY.is_special[masked.inputs["targets"]].any()
    assert (np.diff(positions_of(masked)) > 0).all()
    assert masked.counts == {"mlm": len(masked.inputs["targets"])}
    assert {array.dtype for name, array in masked.inputs.items() if name != "cu_seqlens"} == {
        np.dtype(np.int64)
    }


@given(st.integers(0, 999), st.integers(1, 5), st.integers(8, 90), st.floats(0.01, 0.9))
def test_every_row_has_exactly_its_share_of_predictions(seed: int, batch: int, length: int, rate: float):
    packed = many_texts_per_row(seed, batch, length)
    masked = corrupt(packed, NOISE, MaskedLM(rate=rate), VOCABULARY)
    per_row = np.bincount(positions_of(masked) // length, minlength=batch)
    maskable = (~VOCABULARY.is_special[packed.input_ids]).sum(1)
    assert per_row.tolist() == [max(round(rate * count), min(count, 1)) for count in maskable.tolist()]


def test_of_the_predicted_positions_80_percent_are_masked_10_random_10_kept():
    masked = corrupt(one_text_per_row(512, 128), NOISE, MaskedLM(), VOCABULARY)
    inputs, targets = read_there(masked), masked.inputs["targets"]
    # Three standard errors of a share; a random token equals the original in 1 of 3996 draws.
    tolerance = 3 * (0.25 / len(targets)) ** 0.5
    assert (inputs == VOCABULARY["mask"]).mean() == pytest.approx(0.8, abs=tolerance)
    assert (inputs == targets).mean() == pytest.approx(0.1, abs=tolerance)
    drawn = inputs[(inputs != VOCABULARY["mask"]) & (inputs != targets)]
    assert not VOCABULARY.is_special[drawn].any()
    # Uniform over the vocabulary: mean and deviation of a uniform distribution.
    assert drawn.mean() == pytest.approx(NUM_TOKENS / 2, rel=0.1)
    assert drawn.std() == pytest.approx(NUM_TOKENS / 12**0.5, rel=0.1)


@pytest.mark.parametrize(("mask", "random"), [(1.0, 0.0), (0.0, 1.0), (0.0, 0.0), (0.5, 0.5)])
def test_shares_can_be_set(mask: float, random: float):
    objective = MaskedLM(mask_share=mask, random_share=random)
    masked = corrupt(one_text_per_row(64, 128), NOISE, objective, VOCABULARY)
    inputs = read_there(masked)
    assert (inputs == VOCABULARY["mask"]).mean() == pytest.approx(mask, abs=0.05)
    assert (inputs == masked.inputs["targets"]).mean() == pytest.approx(1 - mask - random, abs=0.05)


@pytest.mark.parametrize("units", ["token", "word", "ngram"])
def test_static_masks_are_those_of_the_first_epoch(units):
    first, static = one_text_per_row(4, 64), MaskedLM(units=units, dynamic=False)
    later = corrupt(in_epoch(first, 1), NOISE, static, VOCABULARY)
    assert same(corrupt(first, NOISE, static, VOCABULARY), later)


@pytest.mark.parametrize("units", ["token", "word"])
def test_every_position_is_predicted_equally_often(units):
    masked = corrupt(one_text_per_row(4000, 22), NOISE, MaskedLM(rate=0.2, units=units), VOCABULARY)
    counts = np.bincount(positions_of(masked) % 22, minlength=22)[1:-1]
    expected = 4000 * 0.2
    assert np.abs(counts - expected).max() < 5 * (expected * 0.8) ** 0.5


def test_predictions_are_independent_of_each_other():
    # Of 20 tokens 4 are chosen: two given ones together in 4/20 * 3/19 of the rows.
    masked = corrupt(one_text_per_row(8000, 22), NOISE, MaskedLM(rate=0.2), VOCABULARY)
    chosen = np.zeros((8000, 22))
    chosen.reshape(-1)[positions_of(masked)] = 1
    together = (chosen.T @ chosen)[1:-1, 1:-1][np.triu_indices(20, 1)]
    expected = 8000 * 4 / 20 * 3 / 19
    assert np.abs(together - expected).max() < 5 * expected**0.5


@given(st.integers(0, 999), st.integers(1, 4), st.floats(0.05, 0.6), st.sampled_from(["word", "ngram"]))
def test_whole_words_are_always_whole_and_within_the_budget(
    seed: int, word_length: int, rate: float, units: Units
):
    packed = many_texts_per_row(seed, 3, 60)
    vocabulary = vocabulary_for(mlm, MaskedLM(), word_length=word_length)
    masked = corrupt(packed, NOISE, MaskedLM(rate=rate, units=units), vocabulary)
    chosen = np.zeros(packed.input_ids.size, dtype=bool)
    chosen[positions_of(masked)] = True
    words = words_in(packed.input_ids.reshape(-1), word_length)
    assert all(chosen[word].all() or not chosen[word].any() for word in words)
    for row in range(3):
        own = [word for word in words if word[0] // 60 == row]
        budget = max(round(rate * sum(map(len, own))), min(len(own), 1))
        left = budget - chosen.reshape(3, 60)[row].sum()
        assert left >= 0
        # Nothing that still fits into the budget was left out.
        assert all(chosen[word[0]] or len(word) > left for word in own)


def test_words_are_hidden_token_by_token():
    # As in BERT's released code: in a word of two tokens, 0.8 * 0.8 are two masks.
    vocabulary = vocabulary_for(mlm, MaskedLM(), word_length=2)
    masked = corrupt(one_text_per_row(512, 130), NOISE, MaskedLM(units="word"), vocabulary)
    is_mask = (read_there(masked) == vocabulary["mask"])[: len(positions_of(masked)) // 2 * 2]
    starts = masked.inputs["targets"] % 2 == 0
    pairs = np.flatnonzero(starts[:-1] & (np.diff(positions_of(masked)) == 1))
    both = is_mask[pairs] & is_mask[pairs + 1]
    assert both.mean() == pytest.approx(0.64, abs=3 * (0.25 / len(pairs)) ** 0.5)


def test_ngrams_have_the_lengths_of_albert():
    # One n-gram per row of single-token words: p(n) = 1/n / (1 + 1/2 + 1/3) (Lan et al. 2020, section 3.1).
    rows = 6000
    masked = corrupt(one_text_per_row(rows, 102), NOISE, MaskedLM(rate=0.08, units="ngram"), VOCABULARY)
    chosen = np.zeros((rows, 102), dtype=bool)
    chosen.reshape(-1)[positions_of(masked)] = True
    assert (chosen.sum(1) == 8).all()
    lengths = np.concatenate([np.diff(np.flatnonzero(np.diff(row.astype(int))))[::2] for row in chosen])
    # Neighbours look like one, and the last of a row is shortened; so this allows for a little more than noise.
    shares = np.bincount(np.minimum(lengths, 4), minlength=5)[1:] / len(lengths)
    assert shares[:3] == pytest.approx([6 / 11, 3 / 11, 2 / 11], abs=0.06)


def test_ngrams_of_one_word_are_whole_words():
    words, ngrams = (MaskedLM(units="word"), MaskedLM(units="ngram", max_ngram=1))
    packed = many_texts_per_row(3, 4, 64)
    assert same(corrupt(packed, NOISE, words, VOCABULARY), corrupt(packed, NOISE, ngrams, VOCABULARY))


def as_pairs(packed: Packed) -> Packed:
    labels = np.arange(len(packed.input_ids)) % 2
    segments = np.zeros(packed.input_ids.shape, dtype=np.uint8)
    segments[:, packed.input_ids.shape[1] // 2 :] = 1
    return replace(packed, segment_ids=segments, pair_labels=labels)


@pytest.mark.parametrize("pairs", ["nsp", "sop"])
def test_pairs_are_a_second_term_with_one_prediction_per_row(pairs):
    objective, packed = MaskedLM(pairs=pairs), as_pairs(one_text_per_row(6, 20))
    reading = mlm.reading(objective, 20)
    assert (reading.relation, reading.formats[0]) == (pairs, "segment_pair")
    assert mlm.terms(objective).keys() == {"mlm", pairs}
    batch = corrupt(packed, NOISE, objective, VOCABULARY)
    assert batch.counts[pairs] == 6
    assert batch.inputs["pair_labels"].tolist() == [0, 1, 0, 1, 0, 1]
    assert (batch.inputs["segment_ids"] == packed.segment_ids).all()
    assert batch.inputs["segment_ids"].dtype == np.int64
    with pytest.raises(ValueError, match="read without pairs"):
        corrupt(one_text_per_row(2, 20), NOISE, objective, VOCABULARY)


def test_plain_text_has_one_term_and_reads_no_pairs():
    reading = mlm.reading(MaskedLM(), 64)
    assert (reading.relation, reading.formats[0], reading.length) == (None, "contiguous", 64)
    assert mlm.terms(MaskedLM()).keys() == {"mlm"}
    assert "pair_labels" not in corrupt(one_text_per_row(2, 20), NOISE, MaskedLM(), VOCABULARY).inputs


def test_shares_over_one_are_refused():
    with pytest.raises(ValueError, match="must not exceed 1"):
        MaskedLM(mask_share=0.9, random_share=0.2)


def test_words_are_those_of_the_pre_tokenizer():
    # An outside oracle: `tokenizers` tells for every token of a WordPiece encoding which word it is of.
    text = Path(mlm.__file__).read_text()
    tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    specials = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    trainer = trainers.WordPieceTrainer(vocab_size=300, special_tokens=specials, show_progress=False)
    tokenizer.train_from_iterator([text], trainer)
    roles = {"bos": 0, "pad": 1, "eos": 2, "unk": 3, "mask": 4}
    vocabulary = make_vocabulary(tokenizer.to_str(), roles)
    encoding = tokenizer.encode(text)
    word_of = np.asarray(encoding.word_ids, dtype=np.int64)
    assert max(np.bincount(word_of)) > 4
    packed = Packed(
        input_ids=np.asarray([encoding.ids], dtype=np.uint32),
        cu_seqlens=np.asarray([0, len(encoding.ids)], dtype=np.int32),
        sample_ids=np.zeros(1, dtype=np.uint64),
        epochs=np.zeros(1, dtype=np.uint64),
    )

    def shares_hidden(units: Units) -> set[float]:
        """Of all words, the shares of their tokens that are hidden."""
        masked = corrupt(packed, NOISE, MaskedLM(rate=0.3, units=units), vocabulary)
        chosen = np.zeros(len(encoding.ids))
        chosen[positions_of(masked)] = 1
        return set(np.bincount(word_of, chosen) / np.bincount(word_of))

    assert shares_hidden("word") == {0.0, 1.0}
    assert len(shares_hidden("token")) > 2
