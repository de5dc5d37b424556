"""mBART's denoising: language tags, and its two noises by their numbers."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers.models.mbart.modeling_mbart import shift_tokens_right
from transformers.models.mbart.tokenization_mbart import FAIRSEQ_LANGUAGE_CODES

from pipeline.objectives import mbart_denoising
from pipeline.objectives.mbart_denoising import MBartDenoising, extra_tokens, language_tag, reading
from pipeline.samples.noise import Noise
from tests.pipeline.packed_texts import (
    BOS,
    EOS,
    PAD,
    many_texts_per_row,
    one_text_per_row,
    pairs,
    texts,
    vocabulary_for,
)

NOISE = Noise.of("train", 1)
SETTINGS = MBartDenoising()
LANGUAGES = ("ko", "en", "la", "de")
VOCABULARY = vocabulary_for(mbart_denoising, SETTINGS, LANGUAGES)
MASK = VOCABULARY["mask"]
TAGS = [VOCABULARY[tag] for tag in ("de_DE", "en_XX", "ko_KR", "la_XX")]


def in_languages(packed, seed: int):
    batch = len(packed.input_ids)
    return replace(packed, langs=Noise.of("langs", seed).at(np.arange(batch)).integers(4))


def test_tags_are_those_of_the_published_vocabulary():
    assert [language_tag(tag[:2]) for tag in FAIRSEQ_LANGUAGE_CODES] == FAIRSEQ_LANGUAGE_CODES
    published = extra_tokens(SETTINGS, [tag[:2] for tag in FAIRSEQ_LANGUAGE_CODES])
    assert list(published) == [*FAIRSEQ_LANGUAGE_CODES, "<mask>"]
    assert extra_tokens(SETTINGS, LANGUAGES) == ("de_DE", "en_XX", "ko_KR", "la_XX", "<mask>")


def test_samples_are_read_with_language_and_sentences():
    wanted = reading(SETTINGS, 512)
    assert wanted.langs
    assert wanted.sentence_starts
    assert wanted.length == 512


@given(st.integers(0, 10**6), st.integers(1, 4), st.integers(4, 90))
def test_texts_end_with_their_language_and_the_decoder_starts_with_it(seed: int, batch: int, length: int):
    packed = in_languages(many_texts_per_row(seed, batch, length), seed)
    made = mbart_denoising.corrupt(packed, NOISE, SETTINGS, VOCABULARY)
    assert made.inputs["input_ids"].shape == made.inputs["decoder_input_ids"].shape == (batch, length)
    found = pairs(made)
    assert packed.langs is not None
    for pair, text in zip(found, texts(packed), strict=True):
        tag = TAGS[packed.langs[pair.row]]
        assert pair.targets == [*text[1:], tag]
        assert pair.source[-1] == tag
        assert (pair.source[-2:-1] == [EOS]) == (text[-1] == EOS)
        assert BOS not in pair.source
        assert pair.decoder_inputs == shift_tokens_right(torch.tensor([pair.targets]), PAD)[0].tolist()
        assert Counter(token for token in pair.source if token != MASK) <= Counter(pair.targets)


def test_35_percent_is_infilled_with_spans_of_mean_3_and_a_half():
    packed = one_text_per_row(200, 402, num_sentences=20)
    masks = 0
    for pair in pairs(mbart_denoising.corrupt(packed, NOISE, SETTINGS, VOCABULARY)):
        masks += pair.source.count(MASK)
        assert len(pair.source) - pair.source.count(MASK) - 2 == 400 - 140
    assert 200 * 140 / masks == pytest.approx(3.5, abs=0.12)


def test_sentences_change_places():
    config = MBartDenoising(infilling_rate=0)
    packed = one_text_per_row(3000, 11, num_sentences=3)
    made = pairs(mbart_denoising.corrupt(packed, NOISE, config, VOCABULARY))
    orders = Counter(tuple(pair.source) for pair in made)
    assert len(orders) == 6
    assert min(orders.values()) > 400


def test_samples_without_a_known_language_are_refused():
    packed = one_text_per_row(2, 8)
    for langs in (None, np.asarray([0, 4])):
        with pytest.raises(ValueError, match="de_DE, en_XX, ko_KR, la_XX"):
            mbart_denoising.corrupt(replace(packed, langs=langs), NOISE, SETTINGS, VOCABULARY)
