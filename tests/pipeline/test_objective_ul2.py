"""UL2's mixture: the seven denoisers of table 1, equally often, each by its numbers."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from pipeline.objectives import ul2_mixture_of_denoisers as ul2
from pipeline.objectives.ul2_mixture_of_denoisers import Denoiser, MixtureOfDenoisers, reading
from pipeline.samples.noise import Noise
from pipeline.samples.packed import Packed
from tests.pipeline.packed_texts import (
    BOS,
    EOS,
    PAD,
    Pair,
    hidden_spans,
    many_texts_per_row,
    one_text_per_row,
    pairs,
    texts,
    vocabulary_for,
    with_spans,
)

NOISE = Noise.of("train", 1)
UL2 = MixtureOfDenoisers()
VOCABULARY = vocabulary_for(ul2, UL2)
SENTINELS = [VOCABULARY[f"<extra_id_{number}>"] for number in range(100)]
MODES = {VOCABULARY["[NLU]"]: "R", VOCABULARY["[S2S]"]: "S", VOCABULARY["[NLG]"]: "X"}


def corrupted(packed, config: MixtureOfDenoisers = UL2) -> list[Pair]:
    return pairs(ul2.corrupt(packed, NOISE, config, VOCABULARY))


def test_each_denoiser_hides_what_table_1_says():
    raw = reading(UL2, 512).length - 1
    num_tokens: defaultdict[tuple[str, int, float], int] = defaultdict(int)
    for pair in corrupted(one_text_per_row(1400, raw + 2)):
        lengths = [len(span) for span in hidden_spans(pair, SENTINELS)]
        mean = 0 if MODES[pair.source[0]] == "S" else round(sum(lengths) / len(lengths))
        rate = 0 if MODES[pair.source[0]] == "S" else round(sum(lengths) / raw, 2)
        num_tokens[MODES[pair.source[0]], mean, rate] += 1
    # 64 goes into the 76 tokens that are hidden of 509 once.
    assert set(num_tokens) == {
        ("R", 3, 0.15),
        ("R", 8, 0.15),
        ("S", 0, 0),
        ("X", 3, 0.5),
        ("X", 8, 0.5),
        ("X", 76, 0.15),
        ("X", 64, 0.5),
    }
    assert chisquare(list(num_tokens.values())).pvalue > 1e-3


def test_the_s_denoiser_hides_the_end_of_the_text_a_quarter_on_average():
    config = MixtureOfDenoisers(denoisers=(Denoiser(kind="S", rate=0.25),))
    suffixes = []
    for pair in corrupted(one_text_per_row(3000, 42), config):
        (suffix,) = hidden_spans(pair, SENTINELS)
        assert pair.source[-2:] == [SENTINELS[0], EOS]
        assert suffix == list(range(suffix[0], suffix[0] + len(suffix)))
        assert pair.source[-3] == suffix[0] - 1
        suffixes.append(len(suffix))
    assert np.mean(suffixes) == pytest.approx(10, abs=0.4)
    assert chisquare(np.bincount(suffixes, minlength=20)[1:]).pvalue > 1e-3
    assert max(suffixes) == 19


def test_a_single_long_span_lies_anywhere():
    """Only the S denoiser is bound to the end of the text."""
    config = MixtureOfDenoisers(denoisers=(Denoiser(kind="X", rate=0.15, mean_span_length=64),))
    starts = []
    for pair in corrupted(one_text_per_row(6000, 42), config):
        ((first, *others),) = hidden_spans(pair, SENTINELS)
        assert others == list(range(first + 1, first + 6))
        starts.append(first - 4)
    assert chisquare(np.bincount(starts, minlength=35)).pvalue > 1e-3
    assert max(starts) == 34


def test_denoisers_are_drawn_by_their_weights():
    config = MixtureOfDenoisers(
        denoisers=(Denoiser(kind="R", rate=0.15, weight=3), Denoiser(kind="X", rate=0.5, weight=1))
    )
    kinds = [MODES[pair.source[0]] for pair in corrupted(one_text_per_row(4000, 12), config)]
    assert kinds.count("R") / 4000 == pytest.approx(0.75, abs=0.025)


def test_no_denoiser_reads_more_than_the_sequence_length():
    for length in (64, 128, 512):
        packed = one_text_per_row(300, reading(UL2, length).length)
        made = ul2.corrupt(packed, NOISE, UL2, VOCABULARY)
        assert made.inputs["input_ids"].shape[1] <= length
        assert len(pairs(made)) == 300


@given(st.integers(0, 10**6), st.integers(1, 6), st.integers(4, 120))
def test_sentinels_and_spans_give_the_text_back(seed: int, batch: int, length: int):
    packed = many_texts_per_row(seed, batch, length)
    written = [[token for token in text if token not in (BOS, EOS)] for text in texts(packed)]
    found = corrupted(packed)
    for pair in found:
        assert pair.source[0] in MODES
        assert pair.decoder_inputs == [PAD, *pair.targets[:-1]]
    assert [with_spans(pair, SENTINELS)[1:] for pair in found] == [text for text in written if len(text) >= 2]
    # All pieces of a sample have its denoiser.
    assert all(one.source[0] == two.source[0] for one, two in pairwise(found) if one.row == two.row)


def test_samples_sorted_by_length_are_padded_little_and_mixed_as_before():
    """128 samples of 512 tokens in micro-batches of 16, as a step reads them."""
    packed = one_text_per_row(1280, reading(UL2, 512).length + 1)
    length = packed.input_ids.shape[1] - 1
    lengths = ul2.lengths(UL2, NOISE, packed.sample_ids, packed.epochs, length)
    assert [len(pair.targets) for pair in corrupted(packed)] == lengths.tolist()
    columns, used, modes = np.zeros(2), np.zeros(2), []
    for step in range(10):
        order = 128 * step + np.argsort(lengths[128 * step : 128 * (step + 1)], kind="stable")
        for rows in np.split(order, 8):
            made = ul2.corrupt(rows_of(packed, rows), NOISE, UL2, VOCABULARY)
            shapes = [made.inputs[name].size for name in ("input_ids", "decoder_input_ids")]
            columns += shapes
            used += [(made.inputs["input_ids"] != PAD).sum(), len(made.inputs["targets"])]
            modes += [pair.source[0] for pair in pairs(made)]
    padding = 1 - used / columns
    assert (padding < [0.08, 0.12]).all()
    assert sorted(modes) == sorted(pair.source[0] for pair in corrupted(packed))


def rows_of(packed: Packed, rows: np.ndarray) -> Packed:
    return replace(
        packed,
        input_ids=packed.input_ids[rows],
        cu_seqlens=packed.cu_seqlens[: len(rows) + 1],
        sample_ids=packed.sample_ids[rows],
        epochs=packed.epochs[rows],
    )


def test_mode_tokens_can_be_left_out():
    config = MixtureOfDenoisers(mode_tokens=False)
    vocabulary = vocabulary_for(ul2, config)
    assert "[NLU]" not in vocabulary.roles
    made = pairs(ul2.corrupt(one_text_per_row(9, 60), NOISE, config, vocabulary))
    assert all(pair.source[0] in (4, vocabulary["<extra_id_0>"]) for pair in made)
