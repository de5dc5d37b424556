"""Noises of BART, mBART, T5 and UL2: each by the numbers of its paper or its released code."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace
from itertools import groupby, pairwise

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.stats import chisquare, poisson
from transformers.models.bart.modeling_bart import shift_tokens_right
from transformers.models.mbart.modeling_mbart import shift_tokens_right as shift_tokens_right_of_mbart
from transformers.models.mbart.tokenization_mbart import FAIRSEQ_LANGUAGE_CODES

from cluster.artefacts.errors import ConfigError
from pipeline.objectives.bart_denoising import BartDenoising
from pipeline.objectives.base import Objective
from pipeline.objectives.mbart_denoising import MBartDenoising, language_tag
from pipeline.objectives.t5_span_corruption import SpanCorruption
from pipeline.objectives.ul2_mixture_of_denoisers import Denoiser, MixtureOfDenoisers
from pipeline.objectives.vocabulary import Vocabulary
from pipeline.samples.noise import Noise
from pipeline.samples.packed import Packed
from tests.pipeline.packed_texts import (
    BOS,
    EOS,
    FIRST_TEXT,
    NUM_TOKENS,
    PAD,
    UNK,
    Pair,
    hidden_spans,
    many_texts_per_row,
    one_text_per_row,
    packed_of,
    pairs,
    sentinels_of,
    texts,
    vocabulary_for,
    with_spans,
)

NOISE = Noise.of("train", 1)
BART = BartDenoising()
INFILLING = BartDenoising(permute_sentences=0)
OVERLAPPING = BartDenoising(permute_sentences=0, overlapping_spans=True)
MASKING = BartDenoising(permute_sentences=0, infilling_rate=0, masking_rate=0.15)
DELETION = BartDenoising(permute_sentences=0, infilling_rate=0, deletion_rate=0.15)
PERMUTATION = BartDenoising(infilling_rate=0)
ROTATION = BartDenoising(permute_sentences=0, infilling_rate=0, rotation_probability=1)
ALL = BartDenoising(masking_rate=0.1, deletion_rate=0.5, rotation_probability=0.5)
BART_SETTINGS = {
    "bart": BART,
    "bart, infilling": INFILLING,
    "bart, overlapping": OVERLAPPING,
    "bart, masking": MASKING,
    "bart, deletion": DELETION,
    "bart, permutation": PERMUTATION,
    "bart, rotation": ROTATION,
    "bart, all": ALL,
}
MBART, T5, UL2 = MBartDenoising(), SpanCorruption(), MixtureOfDenoisers()
LANGUAGES = ("ko", "en", "la", "de")
TAGS = ("de_DE", "en_XX", "ko_KR", "la_XX")
OF_BART, OF_MBART = vocabulary_for(BART), vocabulary_for(MBART, LANGUAGES)
OF_T5, OF_UL2 = vocabulary_for(T5), vocabulary_for(UL2)
VOCABULARIES = {type(BART): OF_BART, type(MBART): OF_MBART, type(T5): OF_T5, type(UL2): OF_UL2}
MASK = OF_BART["mask"]
MODES = {OF_UL2["[NLU]"]: "R", OF_UL2["[S2S]"]: "S", OF_UL2["[NLG]"]: "X"}


def corrupted(packed: Packed, objective: Objective, vocabulary: Vocabulary | None = None) -> list[Pair]:
    return pairs(objective.corrupt(packed, NOISE, vocabulary or VOCABULARIES[type(objective)]))


@pytest.mark.parametrize(
    ("objective", "packed", "masks", "shown"),
    [
        (MASKING, one_text_per_row(50, 202), 30, 170),
        (DELETION, one_text_per_row(50, 202), 0, 170),
        (INFILLING, one_text_per_row(50, 402), None, 280),
        (MBART, one_text_per_row(50, 402, num_sentences=20), None, 260),
        # Masking and deletion count what infilling left.
        (ALL, one_text_per_row(50, 402, num_sentences=40), None, 280 - 28 - 126),
        (INFILLING, packed_of([[BOS, *[UNK] * 100, EOS]] * 8), None, 70),
    ],
    ids=["15% masked", "15% deleted", "30% infilled", "mBART's 35%", "one after another", "unknown tokens"],
)
def test_each_noise_takes_exactly_its_share(
    objective: Objective, packed: Packed, masks: int | None, shown: int
):
    mask = VOCABULARIES[type(objective)]["mask"]
    for pair in corrupted(packed, objective):
        assert sum(UNK <= token < NUM_TOKENS for token in pair.source) == shown
        assert masks is None or pair.source.count(mask) == masks


@given(
    st.integers(0, 10**6), st.integers(1, 4), st.integers(4, 90), st.sampled_from([*BART_SETTINGS.values()])
)
def test_whatever_barts_noise_the_decoder_writes_the_original(
    seed: int, batch: int, length: int, config: BartDenoising
):
    packed = many_texts_per_row(seed, batch, length)
    made = pairs(config.corrupt(packed, NOISE, OF_BART))
    assert [pair.targets for pair in made] == texts(packed)
    for pair in made:
        shifted = shift_tokens_right(torch.tensor([pair.targets]), PAD, EOS)
        assert pair.decoder_inputs == shifted[0].tolist()
        assert len(pair.source) <= len(pair.targets)
        assert pair.source[0] == BOS
        assert (pair.source[-1] == EOS) == (pair.targets[-1] == EOS)
        kept = Counter(token for token in pair.source if token != MASK)
        assert kept <= Counter(pair.targets)
        for special in (BOS, EOS):
            assert kept[special] == pair.targets.count(special)
        if config is DELETION:
            assert pair.source == [token for token in pair.targets if token in pair.source]
        if config is MASKING:
            assert len(pair.source) == len(pair.targets)
        if config in (INFILLING, OVERLAPPING, MASKING):
            # Every run of masks stands for the tokens between its neighbours, and nothing else is gone.
            shown = [list(run) for is_mask, run in groupby(pair.source, MASK.__eq__) if not is_mask]
            at = [(pair.targets.index(run[0]), len(run)) for run in shown]
            assert [pair.targets[start : start + length] for start, length in at] == shown
            assert all(start + length <= after for (start, length), (after, _) in pairwise(at))
            assert at[0][0] == 0
            assert sum(at[-1]) == len(pair.targets) or pair.source[-1] == MASK


def test_overlapping_spans_cover_and_leave_as_much_as_in_the_released_code():
    """Against the steps of fairseq's denoising_dataset.py, one word a token: what remains, and the masks."""
    draws = np.random.default_rng(5)

    def released() -> tuple[int, int]:
        lengths = draws.poisson(3.0, 400)
        spans = int(np.argmax(lengths.cumsum() >= 120)) + 1
        lengths = lengths[:spans]
        lengths[-1] -= lengths.sum() - 120
        covers, inside = np.zeros(400, dtype=bool), np.zeros(400, dtype=bool)
        starts = draws.permutation(400)[: (lengths > 0).sum()]
        for start, length in zip(starts, lengths[lengths > 0], strict=True):
            covers[start : start + length] = inside[start + 1 : start + length] = True
        return int((~covers).sum()), int((lengths == 0).sum() + (~inside[starts]).sum())

    expected = np.mean([released() for _ in range(2000)], axis=0)
    made = corrupted(one_text_per_row(500, 402), OVERLAPPING)
    masks, tokens = np.mean([(pair.source.count(MASK), len(pair.source) - 2) for pair in made], axis=0)
    assert tokens - masks == pytest.approx(expected[0], abs=1.5)
    assert masks == pytest.approx(expected[1], abs=1.0)


def test_infilled_spans_have_poisson_lengths_and_lie_anywhere():
    shown, lengths, num_masks = Counter(), Counter(), 0
    for pair in corrupted(one_text_per_row(1000, 202), INFILLING):
        shown.update(token for token in pair.source if token != MASK)
        num_masks += pair.source.count(MASK)
        # Where a mask stands alone, what it hides is known.
        for before, token, after in zip(pair.source, pair.source[1:], pair.source[2:], strict=False):
            if token == MASK and before not in (BOS, MASK) and after not in (EOS, MASK):
                lengths[after - before - 1] += 1
    found = np.array([lengths[length] for length in range(12)]) / lengths.total()
    # One span of about twenty in a text is cut to fit the budget.
    assert np.abs(found - poisson(3).pmf(np.arange(12))).max() < 0.02
    assert 1000 * 60 / num_masks == pytest.approx(3, abs=0.1)
    hidden = 1 - np.array([shown[token] for token in range(FIRST_TEXT, FIRST_TEXT + 200)]) / 1000
    assert np.abs(hidden[8:-8] - 0.3).max() < 0.07
    # The first token is hidden only by a span that begins there, the last only by one that ends there.
    assert hidden[0] == pytest.approx(hidden[-1], abs=0.04)
    assert 0.08 < hidden[0] < 0.16


def test_infilling_never_splits_a_word_unless_it_may():
    vocabulary = vocabulary_for(INFILLING, word_length=3)
    for packed in (one_text_per_row(32, 200), many_texts_per_row(5, 16, 128)):
        for pair in corrupted(packed, INFILLING, vocabulary):
            text = pair.targets[1:-1] if pair.targets[-1] == EOS else pair.targets[1:]
            words = np.cumsum([token % 3 == 0 for token in text]).tolist()
            kept = {(word, token in pair.source) for word, token in zip(words, text, strict=True)}
            assert len(kept) == len(set(words))
    config = INFILLING.model_copy(update={"whole_words": False})
    text = one_text_per_row(3, 90)
    assert corrupted(text, config, vocabulary) == corrupted(text, config)


def test_only_the_wanted_share_of_sentences_changes_places():
    config = BartDenoising(infilling_rate=0, permute_sentences=0.4)
    moved = [
        sum(pair.source[1 + 3 * place] != pair.targets[1 + 3 * place] for place in range(10))
        for pair in corrupted(one_text_per_row(500, 32, num_sentences=10), config)
    ]
    assert max(moved) == 4
    assert 1 not in moved


@pytest.mark.parametrize("objective", [BART, MBART], ids=["bart", "mbart"])
def test_spans_are_infilled_in_sentences_that_have_changed_places(objective: Objective):
    for pair in corrupted(one_text_per_row(20, 402, num_sentences=20), objective):
        shown = [token - FIRST_TEXT for token in pair.source if FIRST_TEXT <= token < NUM_TOKENS]
        sentences = {number: [*run] for number, run in groupby(shown, lambda token: token // 20)}
        assert [*itertools.chain(*sentences.values())] == shown, "no sentence is torn apart"
        assert all(run == sorted(run) for run in sentences.values())
        assert [*sentences] != sorted(sentences)


def test_rotation_happens_as_often_as_asked():
    made = corrupted(one_text_per_row(4000, 102), ROTATION.model_copy(update={"rotation_probability": 0.25}))
    for pair in made:
        text = pair.targets[1:-1]
        first = text.index(pair.source[1])
        assert pair.source == [BOS, *text[first:], *text[:first], EOS]
    assert np.mean([pair.source != pair.targets for pair in made]) == pytest.approx(0.25 * 0.99, abs=0.025)


def in_one_piece(packed: Packed) -> Packed:
    """The rows without the boundaries between their documents."""
    batch, length = packed.input_ids.shape
    return replace(packed, cu_seqlens=np.arange(0, batch * length + 1, length, dtype=np.int32))


def test_documents_that_share_a_piece_are_one_text_whose_special_tokens_bart_keeps():
    packed = many_texts_per_row(2, 6, 120, longest=20)
    for config in BART_SETTINGS.values():
        for pair in corrupted(in_one_piece(packed), config):
            for special in (BOS, EOS):
                assert pair.source.count(special) == pair.targets.count(special)
    for row, pair in zip(packed.input_ids.tolist(), corrupted(in_one_piece(packed), T5), strict=True):
        assert with_spans(pair, sentinels_of(OF_T5)) == [token for token in row if token > UNK]


def test_tags_are_those_of_the_published_vocabulary():
    assert [language_tag(tag[:2]) for tag in FAIRSEQ_LANGUAGE_CODES] == FAIRSEQ_LANGUAGE_CODES
    published = MBART.extra_tokens([tag[:2] for tag in FAIRSEQ_LANGUAGE_CODES])
    assert list(published) == [*FAIRSEQ_LANGUAGE_CODES, "<mask>"]
    assert MBART.extra_tokens(LANGUAGES) == (*TAGS, "<mask>")


@given(st.integers(0, 10**6), st.integers(1, 4), st.integers(4, 90))
def test_texts_of_mbart_end_with_their_language_and_the_decoder_starts_with_it(
    seed: int, batch: int, length: int
):
    langs = Noise.of("langs", seed).at(np.arange(batch)).integers(4)
    packed = replace(many_texts_per_row(seed, batch, length), langs=langs)
    made = MBART.corrupt(packed, NOISE, OF_MBART)
    assert made.inputs["input_ids"].shape == made.inputs["decoder_input_ids"].shape == (batch, length)
    for pair, text in zip(pairs(made), texts(packed), strict=True):
        tag = OF_MBART[TAGS[langs[pair.row]]]
        assert pair.targets == [*text[1:], tag]
        assert pair.source[-1] == tag
        assert (pair.source[-2:-1] == [EOS]) == (text[-1] == EOS)
        assert BOS not in pair.source
        shifted = shift_tokens_right_of_mbart(torch.tensor([pair.targets]), PAD)
        assert pair.decoder_inputs == shifted[0].tolist()
        assert Counter(token for token in pair.source if token != OF_MBART["mask"]) <= Counter(pair.targets)


def test_spans_of_mbart_have_a_mean_of_3_and_a_half():
    made = corrupted(one_text_per_row(200, 402, num_sentences=20), MBART)
    masks = sum(pair.source.count(OF_MBART["mask"]) for pair in made)
    assert 200 * 140 / masks == pytest.approx(3.5, abs=0.12)


def test_samples_without_sentences_or_a_known_language_are_refused():
    packed = one_text_per_row(2, 8)
    with pytest.raises(ValueError, match="sentence_starts"):
        corrupted(replace(packed, sentence_starts=None), PERMUTATION)
    for langs in (None, np.asarray([0, 4])):
        with pytest.raises(ValueError, match=", ".join(TAGS)):
            corrupted(replace(packed, langs=langs), MBART)
    wanted = MBART.reading(512)
    assert (wanted.langs, wanted.sentence_starts, wanted.length) == (True, True, 512)


def rows_of_raw_tokens(batch: int, raw: int) -> Packed:
    """`<s>` and `raw` tokens of a longer document in every row."""
    packed = one_text_per_row(batch, raw + 1)
    packed.input_ids[:, -1] = packed.input_ids[:, -2] + 1
    return packed


# What T5's released arithmetic gives for 15% and spans of 3: raw tokens and targets for a length of inputs.
@pytest.mark.parametrize(("length", "raw", "targets"), [(512, 568, 114), (256, 284, 58), (128, 141, 29)])
def test_lengths_are_those_of_t5(length: int, raw: int, targets: int):
    assert T5.reading(length).length == raw + 1
    made = T5.corrupt(rows_of_raw_tokens(3, raw), NOISE, OF_T5)
    assert made.inputs["input_ids"].shape == (3, length)
    assert made.inputs["decoder_input_ids"].shape == (3, targets)
    assert "cu_seqlens" not in made.inputs
    assert made.counts == {"denoise": 3 * targets}
    assert PAD not in made.inputs["input_ids"]


def test_t5_hides_15_percent_in_spans_of_mean_3_after_what_is_shown_and_up_to_the_end():
    sentinels = sentinels_of(OF_T5)
    config = SpanCorruption(final_sentinel=True)
    packed = rows_of_raw_tokens(50, 568)
    for pair, ended in zip(corrupted(packed, T5), corrupted(packed, config), strict=True):
        lengths = [len(span) for span in hidden_spans(pair, sentinels)]
        assert (sum(lengths), len(lengths), min(lengths)) == (85, 28, 1)
        assert pair.source[0] not in sentinels
        assert pair.source[-2:] == [sentinels[27], EOS]
        assert not any({one, two} <= {*sentinels} for one, two in pairwise(pair.source))
        assert (ended.source, ended.targets) == (pair.source, [*pair.targets[:-1], sentinels[28], EOS])


def test_rows_of_many_tiny_texts_lose_nothing_and_no_piece_is_longer_than_a_usual_row():
    """Each of them costs a sentinel and two `</s>`, so that the decoder's rows get wider than T5's."""
    packed = many_texts_per_row(1, 8, 569, longest=4)
    starts = packed.cu_seqlens
    # The first row is one text, and so ends with much padding.
    packed = replace(packed, cu_seqlens=starts[(starts == 0) | (starts >= 569)])
    made = T5.corrupt(packed, NOISE, OF_T5)
    assert made.inputs["decoder_input_ids"].shape[1] in range(114 + 64, 569, 64)
    assert len(pairs(made)) == sum(len(set(text) - {BOS, EOS}) >= 2 for text in texts(packed))
    assert np.diff(made.inputs["cu_seqlens"]).max() <= 512
    assert np.diff(made.inputs["decoder_cu_seqlens"]).max() <= 114


def test_sentinels_are_numbered_downwards_as_in_the_published_vocabulary():
    assert all(one == two + 1 for one, two in pairwise(sentinels_of(OF_T5)))
    assert T5.extra_tokens(())[-1] == "<extra_id_0>"
    assert not any(OF_T5.is_special[: sentinels_of(OF_T5)[-1]][4:])


def test_too_few_sentinels_are_refused_before_anything_is_read():
    with pytest.raises(ConfigError, match="num_sentinels by 8"):
        SpanCorruption(num_sentinels=20).reading(512)


@given(rate=st.floats(0.001, 0.9999), mean=st.floats(1, 1e6), length=st.integers(8, 300))
def test_raw_lengths_are_the_longest_that_fit(rate: float, mean: float, length: int):
    config = SpanCorruption(rate=rate, mean_span_length=mean, num_sentinels=400)
    vocabulary = vocabulary_for(SpanCorruption(num_sentinels=400))
    raw = config.reading(length).length - 1
    assume(raw < 3000)
    fitting, longer = (
        max(len(pair.source) for pair in corrupted(rows_of_raw_tokens(1, n), config, vocabulary))
        for n in (raw, raw + 1)
    )
    assert raw == 3 or fitting <= length
    assert longer > length


def test_each_denoiser_of_ul2_hides_what_table_1_says_and_samples_know_how_much():
    raw = UL2.reading(512).length - 1
    packed, found = one_text_per_row(1400, raw + 2), Counter()
    made = corrupted(packed, UL2)
    for pair in made:
        lengths = [len(span) for span in hidden_spans(pair, sentinels_of(OF_UL2))]
        mode, hidden = MODES[pair.source[0]], sum(lengths)
        shape = (0, 0) if mode == "S" else (round(hidden / len(lengths)), round(hidden / raw, 2))
        found[mode, *shape] += 1
    # 64 goes into the 76 tokens that are hidden of 509 once.
    wanted = {("R", 3, 0.15), ("R", 8, 0.15), ("S", 0, 0), ("X", 3, 0.5), ("X", 8, 0.5), ("X", 76, 0.15)}
    assert set(found) == {*wanted, ("X", 64, 0.5)}
    assert chisquare(list(found.values())).pvalue > 1e-3
    lengths = UL2.lengths(NOISE)(packed.sample_ids, packed.epochs, raw + 1)
    assert [len(pair.targets) for pair in made] == lengths.tolist()


def test_denoisers_are_drawn_by_their_weights():
    denoisers = (Denoiser(kind="R", rate=0.15, weight=3), Denoiser(kind="X", rate=0.5, weight=1))
    made = corrupted(one_text_per_row(4000, 12), MixtureOfDenoisers(denoisers=denoisers))
    assert np.mean([MODES[pair.source[0]] == "R" for pair in made]) == pytest.approx(0.75, abs=0.025)


@pytest.mark.parametrize("length", [64, 128, 512])
def test_no_denoiser_reads_more_than_the_sequence_length(length: int):
    made = UL2.corrupt(one_text_per_row(300, UL2.reading(length).length), NOISE, OF_UL2)
    assert made.inputs["input_ids"].shape[1] <= length
    assert len(pairs(made)) == 300


def test_mode_tokens_can_be_left_out():
    config = MixtureOfDenoisers(mode_tokens=False)
    vocabulary = vocabulary_for(config)
    assert "[NLU]" not in vocabulary.roles
    made = corrupted(one_text_per_row(9, 60), config, vocabulary)
    assert all(pair.source[0] in (FIRST_TEXT, vocabulary["<extra_id_0>"]) for pair in made)
