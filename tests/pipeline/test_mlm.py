"""Masking of MLM, SpanBERT and ELECTRA: how much is hidden, in which units, and what stands there instead."""

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
from pipeline.objectives.mlm import MaskedLM, Units
from pipeline.objectives.rtd import GeneratorSize, ReplacedTokenDetection, generator_config
from pipeline.objectives.span import SpanMasking, span_lengths
from pipeline.objectives.vocabulary import make_vocabulary
from pipeline.samples.noise import Noise
from tests.pipeline.packed_texts import (
    BOS,
    NUM_TOKENS,
    in_epoch,
    many_texts_per_row,
    one_text_per_row,
    packed_of,
    vocabulary_for,
)
from tests.published_networks import PRESETS

VOCABULARIES = {length: vocabulary_for(MaskedLM(), word_length=length) for length in range(1, 5)}
"""By the number of tokens of a word."""
VOCABULARY = VOCABULARIES[1]
NOISE = Noise.of("train", 1)


def chosen_in(batch: Batch) -> np.ndarray:
    """Which positions are predicted, [batch, length]."""
    chosen = np.zeros(batch.inputs["input_ids"].shape, dtype=bool)
    chosen.reshape(-1)[batch.inputs["predicted_positions"]] = True
    return chosen


def read_there(batch: Batch) -> np.ndarray:
    return batch.inputs["input_ids"].reshape(-1)[batch.inputs["predicted_positions"]]


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


@pytest.mark.parametrize("units", ["token", "word", "ngram", "generator"])
@given(seed=st.integers(0, 999), word_length=st.integers(1, 4), rate=st.floats(0.01, 0.9))
def test_units_are_hidden_whole_and_fill_the_share_of_every_row_as_far_as_they_fit(
    seed: int, word_length: int, rate: float, units
):
    packed, alone = many_texts_per_row(seed, 3, 60), units in ("token", "generator")
    electra = units == "generator"
    objective = ReplacedTokenDetection(rate=rate) if electra else MaskedLM(rate=rate, units=units)
    chosen = chosen_in(objective.corrupt(packed, NOISE, VOCABULARIES[word_length]))
    words = words_in(packed.input_ids.reshape(-1), 1 if alone else word_length)
    for row in range(3):
        own = [word - 60 * row for word in words if word[0] // 60 == row]
        assert all(chosen[row, word].all() or not chosen[row, word].any() for word in own)
        budget = max(round(rate * sum(map(len, own))), min(len(own), 1))
        left = budget - chosen[row].sum()
        assert left == 0 if alone else left >= 0
        assert all(chosen[row, word[0]] or len(word) > left for word in own), "the rest has room for a word"


@pytest.mark.parametrize(("mask", "random"), [(0.8, 0.1), (1.0, 0.0), (0.0, 1.0), (0.5, 0.5)])
def test_of_the_predicted_positions_80_percent_are_masked_10_random_10_kept_or_as_set(
    mask: float, random: float
):
    objective = MaskedLM() if mask == 0.8 else MaskedLM(mask_share=mask, random_share=random)
    masked = objective.corrupt(one_text_per_row(512, 128), NOISE, VOCABULARY)
    inputs, targets = read_there(masked), masked.inputs["targets"]
    # Three standard errors of a share; a random token equals the original in 1 of 3996 draws.
    tolerance = 3 * (0.25 / len(targets)) ** 0.5
    assert (inputs == VOCABULARY["mask"]).mean() == pytest.approx(mask, abs=tolerance)
    assert (inputs == targets).mean() == pytest.approx(1 - mask - random, abs=tolerance)
    drawn = inputs[(inputs != VOCABULARY["mask"]) & (inputs != targets)]
    assert not VOCABULARY.is_special[drawn].any()
    if random:
        # Uniform over the vocabulary: mean and deviation of a uniform distribution.
        assert drawn.mean() == pytest.approx(NUM_TOKENS / 2, rel=0.1)
        assert drawn.std() == pytest.approx(NUM_TOKENS / 12**0.5, rel=0.1)


@pytest.mark.parametrize("units", ["token", "word", "ngram"])
def test_static_masks_are_those_of_the_first_epoch(units: Units):
    first, static = one_text_per_row(4, 64), MaskedLM(units=units, dynamic=False)
    made, later = (static.corrupt(each, NOISE, VOCABULARY) for each in (first, in_epoch(first, 1)))
    assert np.array_equal(made.inputs["input_ids"], later.inputs["input_ids"])
    assert np.array_equal(made.inputs["predicted_positions"], later.inputs["predicted_positions"])


@pytest.mark.parametrize("units", ["token", "word"])
def test_positions_are_predicted_equally_often_and_independently_of_each_other(units: Units):
    # Of 20 tokens 4 are chosen: each in a fifth, two given ones together in 4/20 * 3/19 of the rows.
    masked = MaskedLM(rate=0.2, units=units).corrupt(one_text_per_row(8000, 22), NOISE, VOCABULARY)
    chosen = chosen_in(masked).astype(float)
    together = (chosen.T @ chosen)[1:-1, 1:-1]
    assert np.abs(together.diagonal() - 1600).max() < 5 * (1600 * 0.8) ** 0.5
    expected = 8000 * 4 / 20 * 3 / 19
    assert np.abs(together[np.triu_indices(20, 1)] - expected).max() < 5 * expected**0.5


def test_words_are_hidden_token_by_token():
    # As in BERT's released code: in a word of two tokens, 0.8 * 0.8 are two masks.
    vocabulary = VOCABULARIES[2]
    masked = MaskedLM(units="word").corrupt(one_text_per_row(512, 130), NOISE, vocabulary)
    is_mask, starts = read_there(masked) == vocabulary["mask"], masked.inputs["targets"] % 2 == 0
    pairs = np.flatnonzero(starts[:-1] & (np.diff(masked.inputs["predicted_positions"]) == 1))
    both = is_mask[pairs] & is_mask[pairs + 1]
    assert both.mean() == pytest.approx(0.64, abs=3 * (0.25 / len(pairs)) ** 0.5)


def test_ngrams_have_the_lengths_of_albert():
    # One n-gram per row of single-token words: p(n) = 1/n / (1 + 1/2 + 1/3) (Lan et al. 2020, section 3.1).
    masked = MaskedLM(rate=0.08, units="ngram").corrupt(one_text_per_row(6000, 102), NOISE, VOCABULARY)
    chosen = chosen_in(masked)
    assert (chosen.sum(1) == 8).all()
    lengths = np.concatenate([np.diff(np.flatnonzero(np.diff(row.astype(int))))[::2] for row in chosen])
    # Neighbours look like one, and the last of a row is shortened; so this allows for a little more than noise.
    shares = np.bincount(np.minimum(lengths, 4), minlength=5)[1:] / len(lengths)
    assert shares[:3] == pytest.approx([6 / 11, 3 / 11, 2 / 11], abs=0.06)


@pytest.mark.parametrize("pairs", ["nsp", "sop"])
def test_pairs_are_a_second_term_with_one_prediction_per_row(pairs):
    objective, plain = MaskedLM(pairs=pairs), one_text_per_row(6, 20)
    segments = np.repeat([[0] * 10 + [1] * 10], 6, axis=0).astype(np.uint8)
    packed = replace(plain, segment_ids=segments, pair_labels=np.arange(6) % 2)
    reading = objective.reading(20)
    assert (reading.relation, reading.formats[0]) == (pairs, "segment_pair")
    batch = objective.corrupt(packed, NOISE, VOCABULARY)
    assert batch.counts[pairs] == 6
    assert batch.inputs["pair_labels"].tolist() == [0, 1, 0, 1, 0, 1]
    assert (batch.inputs["segment_ids"] == segments).all()
    assert batch.inputs["segment_ids"].dtype == np.int64
    with pytest.raises(ValueError, match="pairs"):
        objective.corrupt(plain, NOISE, VOCABULARY)


def test_words_are_those_of_the_pre_tokenizer():
    # An outside oracle: `tokenizers` tells for every token of a WordPiece encoding which word it is of.
    text = Path(mlm.__file__).read_text()
    tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    specials = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    trainer = trainers.WordPieceTrainer(vocab_size=300, special_tokens=specials, show_progress=False)
    tokenizer.train_from_iterator([text], trainer)
    roles = {text.strip("<>"): number for number, text in enumerate(specials)}
    vocabulary = make_vocabulary(tokenizer.to_str(), {"bos": 0, "eos": 2, **roles})
    encoding = tokenizer.encode(text)
    word_of = np.asarray(encoding.word_ids, dtype=np.int64)
    assert max(np.bincount(word_of)) > 4
    packed = packed_of([encoding.ids])

    def shares_hidden(units: Units) -> set[float]:
        """Of all words, the shares of their tokens that are hidden."""
        chosen = chosen_in(MaskedLM(rate=0.3, units=units).corrupt(packed, NOISE, vocabulary))
        return set(np.bincount(word_of, chosen[0]) / np.bincount(word_of))

    assert shares_hidden("word") == {0.0, 1.0}
    assert len(shares_hidden("token")) > 2


def spans_of(batch: Batch) -> list[tuple[int, int]]:
    """First and last positions of the spans, read from `span_offsets`."""
    positions, offsets = batch.inputs["predicted_positions"], batch.inputs["span_offsets"]
    starts = np.flatnonzero(offsets == 0)
    ends = np.append(starts[1:], len(offsets)) - 1
    return [(int(positions[a]), int(positions[b])) for a, b in zip(starts, ends, strict=True)]


@pytest.mark.parametrize("length", [64, 128, 512])
def test_spans_have_geometric_lengths_up_to_ten_words_with_a_mean_of_3_8_and_hide_15_percent(length: int):
    """In words of one to four tokens, as WordPiece makes them; what is left of the budget biases neither."""
    # Joshi et al. 2020, figure 2: 22% of the spans have one word, and the mean is 3.8.
    probabilities = 0.2 * 0.8 ** np.arange(10) / (1 - 0.8**10)
    assert np.diff(span_lengths(SpanMasking()), prepend=0) == pytest.approx(probabilities)
    generator = np.random.Generator(np.random.Philox(length))
    starts_word = VOCABULARY.starts_word.copy()
    starts_word[VOCABULARY.ordinary] = generator.random(len(VOCABULARY.ordinary)) < 0.7
    vocabulary, rows = replace(VOCABULARY, starts_word=starts_word), 400_000 // length
    batch = SpanMasking().corrupt(one_text_per_row(rows, length), NOISE, vocabulary)
    targets, begins = batch.inputs["targets"], batch.inputs["span_offsets"] == 0
    words = np.bincount(np.cumsum(begins)[starts_word[targets] | begins])[1:]
    assert words.mean() == pytest.approx(3.797, abs=0.06)
    assert np.bincount(words, minlength=11)[1:] / len(words) == pytest.approx(probabilities, abs=0.015)
    assert batch.counts["mlm"] == batch.counts["sbo"] == len(targets)
    assert len(targets) / (rows * (length - 2)) == pytest.approx(0.15, abs=0.006)


@given(st.integers(0, 999), st.integers(1, 4), st.floats(0.05, 0.5), st.booleans(), st.sampled_from([7, 10]))
def test_spans_are_of_whole_words_enclosed_by_tokens_of_their_piece_that_are_not_hidden(
    seed: int, word_length: int, rate: float, whole_words: bool, longest: int
):
    packed, vocabulary = many_texts_per_row(seed, 3, 60), VOCABULARIES[word_length]
    objective = SpanMasking(rate=rate, max_span_tokens=longest, whole_words=whole_words)
    batch = objective.corrupt(packed, NOISE, vocabulary)
    ids, positions = packed.input_ids.reshape(-1), batch.inputs["predicted_positions"]
    piece = np.searchsorted(packed.cu_seqlens, np.arange(ids.size), side="right")
    left, right = batch.inputs["left_positions"], batch.inputs["right_positions"]
    hidden, around = set(positions.tolist()), {*left.tolist(), *right.tolist()}
    assert sorted(hidden | around) == batch.inputs["read_positions"].tolist()
    assert not hidden & around
    assert (piece[left] == piece[positions]).all()
    assert (piece[right] == piece[positions]).all()
    assert (positions - left - 1 == batch.inputs["span_offsets"]).all()
    assert (positions < right).all()
    assert (right - left - 1 <= longest).all()
    for begin, end in zip(left.tolist(), right.tolist(), strict=True):
        assert hidden >= set(range(begin + 1, end))
        if whole_words:
            assert vocabulary.starts_word[ids[begin + 1]] or ids[begin] == BOS
            assert vocabulary.starts_word[ids[end]]
    maskable = (~vocabulary.is_special[packed.input_ids]).sum(1)
    predicted = np.bincount(positions // 60, minlength=3)
    assert (predicted <= np.rint(rate * maskable) + longest).all()


def test_a_span_is_replaced_as_a_whole_80_percent_by_masks_10_at_random_10_not_at_all():
    batch = SpanMasking().corrupt(one_text_per_row(800, 514), NOISE, VOCABULARY)
    read, original = batch.inputs["input_ids"].reshape(-1), one_text_per_row(800, 514).input_ids.reshape(-1)
    kinds = []
    for first, last in spans_of(batch):
        inside = slice(first, last + 1)
        is_mask, is_kept = read[inside] == VOCABULARY["mask"], read[inside] == original[inside]
        assert is_mask.all() or not is_mask.any()
        # A random token equals the one that was there in 1 of 3996 draws.
        kinds.append("mask" if is_mask.all() else "kept" if is_kept.all() else "random")
        if kinds[-1] == "random" and last - first >= 4:
            assert len(set(read[inside].tolist())) > 3, "each token is drawn by itself"
    shares = [kinds.count(kind) / len(kinds) for kind in ("mask", "random", "kept")]
    assert shares == pytest.approx([0.8, 0.1, 0.1], abs=4 * (0.16 / len(kinds)) ** 0.5)


def test_every_word_of_a_text_is_in_a_span_about_equally_often():
    batch = SpanMasking(max_words=3).corrupt(one_text_per_row(4000, 42), NOISE, VOCABULARY)
    counts = np.bincount(batch.inputs["predicted_positions"] % 42, minlength=42)[1:-1]
    # A span does not reach beyond the text, so the ends are hidden less often (as in the paper's procedure).
    inner = counts[3:-3]
    assert inner.std() / inner.mean() < 0.06
    assert counts.min() > 0.4 * inner.mean()


def test_without_the_boundary_objective_there_is_one_term():
    batch = SpanMasking(boundary=False).corrupt(one_text_per_row(2, 64), NOISE, VOCABULARY)
    assert set(batch.inputs) == {"input_ids", "predicted_positions", "targets", "read_positions"}
    assert np.array_equal(batch.inputs["read_positions"], batch.inputs["predicted_positions"])
    assert batch.counts.keys() == {"mlm"}


@pytest.mark.parametrize(
    ("name", "share", "expected"),
    # Clark et al. 2020, table 6: generator size 1/4, 1/3 and 1/4 of the hidden and feed-forward size and the heads.
    [
        ("electra-small", 1 / 4, (6, 64, 256, 1, 128)),
        ("electra-base", 1 / 3, (6, 256, 1024, 4, 768)),
        ("electra-large", 1 / 4, (12, 256, 1024, 4, 1024)),
    ],
)
def test_generators_have_the_published_shares(name: str, share: float, expected: tuple[int, ...]):
    made = generator_config(GeneratorSize(hidden_share=share, layers_share=0.5), PRESETS[name])
    sizes = (made.num_layers, made.hidden_size, made.intermediate_size, made.num_heads, made.embedding_width)
    assert sizes == expected
    assert [term.weight for term in ReplacedTokenDetection().terms().values()] == [1.0, 50.0]
