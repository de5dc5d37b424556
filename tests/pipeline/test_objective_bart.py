"""Denoising of BART and mBART: each noise by its numbers, and what holds for all of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import groupby, pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import poisson
from transformers.models.bart.modeling_bart import shift_tokens_right
from transformers.models.mbart.modeling_mbart import shift_tokens_right as shift_tokens_right_of_mbart
from transformers.models.mbart.tokenization_mbart import FAIRSEQ_LANGUAGE_CODES

from pipeline.objectives.bart_denoising import BartDenoising, Infilling
from pipeline.objectives.mbart_denoising import MBartDenoising, language_tag
from pipeline.objectives.vocabulary import Vocabulary
from pipeline.samples.noise import Noise
from pipeline.samples.packed import Packed
from tests.pipeline.packed_texts import (
    BOS,
    EOS,
    FIRST_TEXT,
    PAD,
    UNK,
    Pair,
    many_texts_per_row,
    one_text_per_row,
    pairs,
    texts,
    vocabulary_for,
)

NOISE = Noise.of("train", 1)
VOCABULARY = vocabulary_for(BartDenoising())
MASK = VOCABULARY["mask"]

INFILLING = BartDenoising(permute_sentences=0)
OVERLAPPING = BartDenoising(permute_sentences=0, overlapping_spans=True)
MASKING = BartDenoising(permute_sentences=0, infilling_rate=0, masking_rate=0.15)
DELETION = BartDenoising(permute_sentences=0, infilling_rate=0, deletion_rate=0.15)
PERMUTATION = BartDenoising(infilling_rate=0)
ROTATION = BartDenoising(permute_sentences=0, infilling_rate=0, rotation_probability=1)
SETTINGS = {
    "bart": BartDenoising(),
    "bart, infilling": INFILLING,
    "bart, overlapping": OVERLAPPING,
    "bart, masking": MASKING,
    "bart, deletion": DELETION,
    "bart, permutation": PERMUTATION,
    "bart, rotation": ROTATION,
    "bart, all": BartDenoising(masking_rate=0.1, deletion_rate=0.1, rotation_probability=0.5),
}

LANGUAGES = ("ko", "en", "la", "de")
MULTILINGUAL = vocabulary_for(MBartDenoising(), LANGUAGES)
MBART_MASK = MULTILINGUAL["mask"]


def corrupted(packed: Packed, config: Infilling, vocabulary: Vocabulary = VOCABULARY) -> list[Pair]:
    return pairs(config.corrupt(packed, NOISE, vocabulary))


def spans(source: list[int], text: list[int]) -> list[tuple[int, int]]:
    """Of every run of masks between kept tokens of a text that counts up: how many masks, and how many tokens."""
    found, masks, last = [], 0, text[0] - 1
    for token in [*source, text[-1] + 1]:
        if token == MASK:
            masks += 1
            continue
        if masks:
            found.append((masks, token - last - 1))
        else:
            assert token == last + 1
        masks, last = 0, token
    return found


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


def test_infilling_covers_30_percent_by_spans_of_poisson_lengths_with_a_mask_each():
    found = []
    for pair in corrupted(one_text_per_row(400, 402), INFILLING):
        assert sum(token != MASK for token in pair.source) - 2 == 400 - 120
        found += spans(pair.source[1:-1], pair.decoder_inputs[2:-1] + pair.targets[-2:-1])
    # Where masks stand alone, what each hides is known.
    lengths = np.bincount([length for masks, length in found if masks == 1], minlength=12)
    assert lengths.sum() > 10_000
    expected = poisson(3).pmf(np.arange(12))
    # One span of about forty per text is cut to fit the budget.
    assert np.abs(lengths[:12] / lengths.sum() - expected).max() < 0.015
    assert np.mean(np.repeat(np.arange(len(lengths)), lengths)) == pytest.approx(3, abs=0.1)
    masks = sum(masks for masks, _ in found)
    assert sum(length for _, length in found) / masks == pytest.approx(3, abs=0.1)


def test_infilled_spans_lie_anywhere():
    packed = one_text_per_row(4000, 52)
    shown = [token for pair in corrupted(packed, INFILLING) for token in pair.source[1:-1] if token != MASK]
    hidden = 1 - np.bincount(shown, minlength=FIRST_TEXT + 50)[FIRST_TEXT:] / 4000
    assert np.abs(hidden[5:-5] - 0.3).max() < 0.05
    # The first token is hidden only by a span that begins there, the last only by one that ends there.
    assert np.abs(hidden[:5] - hidden[:-6:-1]).max() < 0.04
    assert 0.1 < hidden[0] < 0.15


def test_infilling_never_splits_a_word():
    vocabulary = vocabulary_for(INFILLING, word_length=3)
    for packed in (one_text_per_row(32, 200), many_texts_per_row(5, 16, 128)):
        for pair in corrupted(packed, INFILLING, vocabulary):
            text = pair.targets[1:-1] if pair.targets[-1] == EOS else pair.targets[1:]
            word = np.cumsum([token % 3 == 0 for token in text])
            kept = [token in pair.source for token in text]
            for number in set(word.tolist()):
                assert len({keep for keep, its in zip(kept, word, strict=True) if its == number}) == 1
    config = INFILLING.model_copy(update={"whole_words": False})
    text = one_text_per_row(3, 90)
    assert corrupted(text, config, vocabulary) == corrupted(text, config, VOCABULARY), "unless it may"


def test_masking_and_deletion_take_exactly_their_share_one_by_one():
    for pair in corrupted(one_text_per_row(50, 202), MASKING):
        assert len(pair.source) == len(pair.targets)
        hidden = [now for now, was in zip(pair.source, pair.targets, strict=True) if now != was]
        assert hidden == [MASK] * 30
    for pair in corrupted(one_text_per_row(50, 202), DELETION):
        assert len(pair.source) == 202 - 30
        assert pair.source == [token for token in pair.targets if token in pair.source]


def test_only_the_wanted_share_of_sentences_changes_places():
    config = BartDenoising(infilling_rate=0, permute_sentences=0.4)
    packed = one_text_per_row(500, 32, num_sentences=10)
    moved = [
        sum(pair.source[1 + 3 * place] != pair.targets[1 + 3 * place] for place in range(10))
        for pair in corrupted(packed, config)
    ]
    assert max(moved) == 4
    assert 1 not in moved


def test_rotation_happens_as_often_as_asked():
    config = ROTATION.model_copy(update={"rotation_probability": 0.25})
    made = corrupted(one_text_per_row(4000, 102), config)
    for pair in made:
        text = pair.targets[1:-1]
        first = text.index(pair.source[1])
        assert pair.source == [BOS, *text[first:], *text[:first], EOS]
    assert np.mean([pair.source != pair.targets for pair in made]) == pytest.approx(0.25 * 0.99, abs=0.025)


def test_noises_compose():
    """The budgets of masking and deletion count what infilling left of 40 sentences of ten words."""
    packed = one_text_per_row(20, 402, num_sentences=40)
    for pair in corrupted(packed, BartDenoising(masking_rate=0.1, deletion_rate=0.5)):
        assert sum(token not in (MASK, BOS, EOS) for token in pair.source) == 280 - 28 - 126
        assert pair.source[1:-1] != sorted(pair.source[1:-1])


@given(st.integers(0, 10**6), st.integers(1, 4), st.integers(4, 90), st.sampled_from([*SETTINGS.values()]))
def test_whatever_the_noise_the_decoder_writes_the_original(
    seed: int, batch: int, length: int, config: BartDenoising
):
    packed = many_texts_per_row(seed, batch, length)
    made = pairs(config.corrupt(packed, NOISE, VOCABULARY))
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
        if config in (INFILLING, OVERLAPPING, MASKING):
            # Every run of masks stands for the tokens between its neighbours, and nothing else is gone.
            shown = [list(run) for is_mask, run in groupby(pair.source, MASK.__eq__) if not is_mask]
            at = [(pair.targets.index(run[0]), len(run)) for run in shown]
            assert [pair.targets[start : start + length] for start, length in at] == shown
            assert all(start + length <= after for (start, length), (after, _) in pairwise(at))
            assert at[0][0] == 0
            assert sum(at[-1]) == len(pair.targets) or pair.source[-1] == MASK


def test_special_tokens_between_documents_that_share_a_piece_stay():
    packed = many_texts_per_row(2, 6, 120, longest=20)
    rows = np.arange(0, 6 * 120 + 1, 120, dtype=np.int32)
    shared = replace(packed, cu_seqlens=rows)
    for config in SETTINGS.values():
        for pair in corrupted(shared, config):
            for special in (BOS, EOS):
                assert pair.source.count(special) == pair.targets.count(special)


def test_unknown_tokens_are_text():
    packed = one_text_per_row(8, 102)
    packed.input_ids[:, 1:-1] = UNK
    for pair in corrupted(packed, INFILLING):
        assert pair.source.count(UNK) == 70


def test_tags_are_those_of_the_published_vocabulary():
    assert [language_tag(tag[:2]) for tag in FAIRSEQ_LANGUAGE_CODES] == FAIRSEQ_LANGUAGE_CODES
    published = MBartDenoising().extra_tokens([tag[:2] for tag in FAIRSEQ_LANGUAGE_CODES])
    assert list(published) == [*FAIRSEQ_LANGUAGE_CODES, "<mask>"]
    assert MBartDenoising().extra_tokens(LANGUAGES) == ("de_DE", "en_XX", "ko_KR", "la_XX", "<mask>")


@given(st.integers(0, 10**6), st.integers(1, 4), st.integers(4, 90))
def test_texts_end_with_their_language_and_the_decoder_starts_with_it(seed: int, batch: int, length: int):
    langs = Noise.of("langs", seed).at(np.arange(batch)).integers(4)
    packed = replace(many_texts_per_row(seed, batch, length), langs=langs)
    made = MBartDenoising().corrupt(packed, NOISE, MULTILINGUAL)
    tags = [MULTILINGUAL[tag] for tag in ("de_DE", "en_XX", "ko_KR", "la_XX")]
    assert made.inputs["input_ids"].shape == made.inputs["decoder_input_ids"].shape == (batch, length)
    for pair, text in zip(pairs(made), texts(packed), strict=True):
        tag = tags[langs[pair.row]]
        assert pair.targets == [*text[1:], tag]
        assert pair.source[-1] == tag
        assert (pair.source[-2:-1] == [EOS]) == (text[-1] == EOS)
        assert BOS not in pair.source
        shifted = shift_tokens_right_of_mbart(torch.tensor([pair.targets]), PAD)
        assert pair.decoder_inputs == shifted[0].tolist()
        assert Counter(token for token in pair.source if token != MBART_MASK) <= Counter(pair.targets)


def test_35_percent_is_infilled_by_mbart_with_spans_of_mean_3_and_a_half():
    masks = 0
    for pair in corrupted(one_text_per_row(200, 402, num_sentences=20), MBartDenoising(), MULTILINGUAL):
        masks += pair.source.count(MBART_MASK)
        assert len(pair.source) - pair.source.count(MBART_MASK) - 2 == 400 - 140
    assert 200 * 140 / masks == pytest.approx(3.5, abs=0.12)


def test_samples_without_sentences_or_a_known_language_are_refused():
    packed = one_text_per_row(2, 8)
    with pytest.raises(ValueError, match="sentence_starts"):
        corrupted(replace(packed, sentence_starts=None), PERMUTATION)
    for langs in (None, np.asarray([0, 4])):
        with pytest.raises(ValueError, match="de_DE, en_XX, ko_KR, la_XX"):
            corrupted(replace(packed, langs=langs), MBartDenoising(), MULTILINGUAL)
    wanted = MBartDenoising().reading(512)
    assert (wanted.langs, wanted.sentence_starts, wanted.length) == (True, True, 512)
