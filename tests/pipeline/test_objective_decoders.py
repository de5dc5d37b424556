"""Decoders: each token predicts the next of its piece; with a prefix, the rest alone, and any split is as likely."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from pipeline.objectives import clm, prefix_lm
from pipeline.samples.noise import Noise
from tests.pipeline.packed_texts import PAD, many_texts_per_row, one_text_per_row, vocabulary_for

VOCABULARY = vocabulary_for(clm, clm.CausalLM())
NOISE = Noise.of("train", 1)


@given(st.integers(0, 10**6), st.integers(1, 4), st.integers(4, 90))
def test_every_token_predicts_the_next_of_its_piece_and_padding_is_never_predicted(
    seed: int, batch: int, length: int
):
    packed = many_texts_per_row(seed, batch, length)
    flat = packed.input_ids.reshape(-1)
    expected = {
        place: int(flat[place + 1])
        for start, stop in zip(packed.cu_seqlens[:-1], packed.cu_seqlens[1:], strict=True)
        for place in range(start, stop - 1)
        if flat[place] != PAD
    }
    made = clm.corrupt(packed, NOISE, clm.CausalLM(), VOCABULARY)
    assert (made.inputs["input_ids"] == packed.input_ids).all()
    assert (made.inputs.get("cu_seqlens", packed.cu_seqlens) == packed.cu_seqlens).all()
    predicted = made.inputs["predicted_positions"].tolist()
    assert dict(zip(predicted, made.inputs["targets"].tolist(), strict=True)) == expected
    assert predicted == sorted(expected)
    assert made.counts == {"clm": len(expected)}


def test_rows_of_one_piece_need_no_boundaries_and_padding_inside_them_is_not_predicted():
    packed = one_text_per_row(2, 8)
    packed.input_ids[1, 6:] = PAD
    made = clm.corrupt(packed, NOISE, clm.CausalLM(), VOCABULARY)
    assert "cu_seqlens" not in made.inputs
    assert made.inputs["predicted_positions"].tolist() == [0, 1, 2, 3, 4, 5, 6, 8, 9, 10, 11, 12]


@given(st.integers(0, 10**6), st.integers(1, 4), st.integers(4, 90))
def test_what_follows_the_prefix_is_predicted_and_nothing_else(seed: int, batch: int, length: int):
    packed = many_texts_per_row(seed, batch, length)
    made = prefix_lm.corrupt(packed, NOISE, prefix_lm.PrefixLM(), VOCABULARY)
    flat, prefixes = packed.input_ids.reshape(-1), made.inputs["prefix_lengths"]
    assert (made.inputs["input_ids"] == packed.input_ids).all()
    assert (made.inputs["cu_seqlens"] == packed.cu_seqlens).all()
    assert prefixes.dtype == np.int32
    expected = {}
    for start, stop, prefix in zip(packed.cu_seqlens[:-1], packed.cu_seqlens[1:], prefixes, strict=True):
        if flat[start] == PAD:
            assert prefix == 0
            continue
        assert 1 <= prefix <= max(1, stop - start - 1)
        expected |= {place - 1: int(flat[place]) for place in range(start + prefix, stop)}
    predicted = made.inputs["predicted_positions"].tolist()
    assert dict(zip(predicted, made.inputs["targets"].tolist(), strict=True)) == expected
    assert predicted == sorted(expected)
    assert made.counts == {"clm": len(expected)}


def test_every_split_point_is_equally_likely():
    made = prefix_lm.corrupt(one_text_per_row(8000, 17), NOISE, prefix_lm.PrefixLM(), VOCABULARY)
    counts = np.bincount(made.inputs["prefix_lengths"], minlength=17)
    assert counts[0] == 0
    assert len(counts) == 17
    assert chisquare(counts[1:]).pvalue > 1e-3
