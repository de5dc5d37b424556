"""Prefix language modelling: any split is as likely as any other, and all of the rest is predicted."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from pipeline.objectives import prefix_lm
from pipeline.samples.noise import Noise
from tests.pipeline.packed_texts import (
    PAD,
    in_epoch,
    many_texts_per_row,
    one_text_per_row,
    row_alone,
    vocabulary_for,
)

SETTINGS = prefix_lm.PrefixLM()
VOCABULARY = vocabulary_for(prefix_lm, SETTINGS)
NOISE = Noise.of("train", 1)


@given(st.integers(0, 10**6), st.integers(1, 4), st.integers(4, 90))
def test_what_follows_the_prefix_is_predicted_and_nothing_else(seed: int, batch: int, length: int):
    packed = many_texts_per_row(seed, batch, length)
    made = prefix_lm.corrupt(packed, NOISE, SETTINGS, VOCABULARY)
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
    made = prefix_lm.corrupt(one_text_per_row(8000, 17), NOISE, SETTINGS, VOCABULARY)
    counts = np.bincount(made.inputs["prefix_lengths"], minlength=17)
    assert counts[0] == 0
    assert len(counts) == 17
    assert chisquare(counts[1:]).pvalue > 1e-3


def test_the_split_changes_with_the_epoch_but_not_with_the_batch():
    packed = many_texts_per_row(3, 5, 64)
    prefixes = prefix_lm.corrupt(packed, NOISE, SETTINGS, VOCABULARY).inputs["prefix_lengths"]
    again = prefix_lm.corrupt(in_epoch(packed, 1), NOISE, SETTINGS, VOCABULARY).inputs["prefix_lengths"]
    assert (prefixes != again).any()
    alone = [
        prefix_lm.corrupt(row_alone(packed, row), NOISE, SETTINGS, VOCABULARY).inputs["prefix_lengths"]
        for row in range(5)
    ]
    assert (np.concatenate(alone) == prefixes).all()
