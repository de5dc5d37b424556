"""Span corruption of T5 and UL2: exact lengths, all masks equally likely; and pairs of texts side by side in rows."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.stats import chisquare

from cluster.artefacts.errors import ConfigError
from pipeline.objectives.t5_span_corruption import SpanCorruption
from pipeline.objectives.ul2_mixture_of_denoisers import Denoiser, MixtureOfDenoisers
from pipeline.samples.noise import Noise
from pipeline.samples.packed import Packed
from tests.pipeline.packed_texts import (
    BOS,
    EOS,
    PAD,
    UNK,
    Pair,
    hidden_spans,
    many_texts_per_row,
    one_text_per_row,
    packed_of,
    pairs,
    texts,
    vocabulary_for,
    with_spans,
)

NOISE = Noise.of("train", 1)
T5, UL2 = SpanCorruption(), MixtureOfDenoisers()
VOCABULARY, UL2_VOCABULARY = vocabulary_for(T5), vocabulary_for(UL2)
SENTINELS, UL2_SENTINELS = (
    [vocabulary[f"<extra_id_{number}>"] for number in range(100)]
    for vocabulary in (VOCABULARY, UL2_VOCABULARY)
)
MODES = {UL2_VOCABULARY["[NLU]"]: "R", UL2_VOCABULARY["[S2S]"]: "S", UL2_VOCABULARY["[NLG]"]: "X"}


def corrupted(packed: Packed, config: SpanCorruption = T5) -> list[Pair]:
    return pairs(config.corrupt(packed, NOISE, VOCABULARY))


def span_sizes(pair: Pair) -> list[int]:
    return [len(span) for span in hidden_spans(pair, SENTINELS)]


def mixed(packed: Packed, *denoisers: Denoiser) -> list[Pair]:
    """What UL2's mixture makes, or one of these denoisers."""
    config = MixtureOfDenoisers(denoisers=denoisers) if denoisers else UL2
    return pairs(config.corrupt(packed, NOISE, UL2_VOCABULARY))


def rows_of_raw_tokens(batch: int, raw: int) -> Packed:
    """`<s>` and `raw` tokens of a longer document in every row."""
    packed = one_text_per_row(batch, raw + 1)
    packed.input_ids[:, -1] = packed.input_ids[:, -2] + 1
    return packed


# What T5's released arithmetic gives for 15% and spans of 3: raw tokens and targets for a length of inputs.
@pytest.mark.parametrize(("length", "raw", "targets"), [(512, 568, 114), (256, 284, 58), (128, 141, 29)])
def test_lengths_are_those_of_t5(length: int, raw: int, targets: int):
    assert T5.reading(length).length == raw + 1
    made = T5.corrupt(rows_of_raw_tokens(3, raw), NOISE, VOCABULARY)
    assert made.inputs["input_ids"].shape == (3, length)
    assert made.inputs["decoder_input_ids"].shape == (3, targets)
    assert "cu_seqlens" not in made.inputs
    assert made.counts == {"denoise": 3 * targets}
    assert PAD not in made.inputs["input_ids"]


def test_15_percent_is_hidden_in_spans_of_mean_3_after_what_is_shown_and_up_to_the_end():
    for pair in corrupted(rows_of_raw_tokens(50, 568)):
        lengths = span_sizes(pair)
        assert (sum(lengths), len(lengths), min(lengths)) == (85, 28, 1)
        assert pair.source[0] not in SENTINELS
        assert pair.source[-2:] == [SENTINELS[27], EOS]
        assert not any({one, two} <= {*SENTINELS} for one, two in pairwise(pair.source))


def test_rows_of_many_tiny_texts_lose_nothing():
    """Each of them costs a sentinel and two `</s>`, so that the decoder's rows get wider than T5's."""
    packed = many_texts_per_row(1, 8, 569, longest=4)
    made = T5.corrupt(packed, NOISE, VOCABULARY)
    assert made.inputs["decoder_input_ids"].shape[1] > 114
    assert (made.inputs["decoder_input_ids"].shape[1] - 114) % 64 == 0
    assert len(pairs(made)) == sum(len(set(text) - {BOS, EOS}) >= 2 for text in texts(packed))


def test_documents_that_share_a_piece_are_one_text():
    packed = many_texts_per_row(4, 3, 100, longest=12)
    shared = replace(packed, cu_seqlens=np.arange(0, 301, 100, dtype=np.int32))
    for row, pair in enumerate(corrupted(shared)):
        assert with_spans(pair, SENTINELS) == [
            token for token in packed.input_ids[row].tolist() if token > UNK
        ]


def test_a_final_sentinel_ends_the_target_if_wanted():
    config = SpanCorruption(final_sentinel=True)
    plain, ended = corrupted(rows_of_raw_tokens(2, 568)), corrupted(rows_of_raw_tokens(2, 568), config)
    for one, two in zip(plain, ended, strict=True):
        assert one.source == two.source
        assert two.targets == [*one.targets[:-1], SENTINELS[28], EOS]


def test_sentinels_are_numbered_downwards_as_in_the_published_vocabulary():
    assert all(one == two + 1 for one, two in pairwise(SENTINELS))
    assert T5.extra_tokens(())[-1] == "<extra_id_0>"
    assert not any(VOCABULARY.is_special[: SENTINELS[-1]][4:])


def test_too_few_sentinels_are_refused_before_anything_is_read():
    with pytest.raises(ConfigError, match="num_sentinels by 8"):
        SpanCorruption(num_sentinels=20).reading(512)


@given(rate=st.floats(0.001, 0.9999), mean=st.floats(1, 1e6), length=st.integers(8, 300))
def test_raw_lengths_are_the_longest_that_fit(rate: float, mean: float, length: int):
    config = SpanCorruption(rate=rate, mean_span_length=mean, num_sentinels=400)
    vocabulary = vocabulary_for(config)
    raw = config.reading(length).length - 1
    assume(raw < 3000)
    fitting, longer = (
        max(len(pair.source) for pair in pairs(config.corrupt(rows_of_raw_tokens(1, n), NOISE, vocabulary)))
        for n in (raw, raw + 1)
    )
    assert raw == 3 or fitting <= length
    assert longer > length


def test_each_denoiser_of_ul2_hides_what_table_1_says():
    raw = UL2.reading(512).length - 1
    found = Counter()
    for pair in mixed(one_text_per_row(1400, raw + 2)):
        lengths = [len(span) for span in hidden_spans(pair, UL2_SENTINELS)]
        mode, hidden = MODES[pair.source[0]], sum(lengths)
        shape = (0, 0) if mode == "S" else (round(hidden / len(lengths)), round(hidden / raw, 2))
        found[mode, *shape] += 1
    # 64 goes into the 76 tokens that are hidden of 509 once.
    wanted = {("R", 3, 0.15), ("R", 8, 0.15), ("S", 0, 0), ("X", 3, 0.5), ("X", 8, 0.5), ("X", 76, 0.15)}
    assert set(found) == {*wanted, ("X", 64, 0.5)}
    assert chisquare(list(found.values())).pvalue > 1e-3


def test_the_s_denoiser_hides_the_end_of_the_text_a_quarter_on_average():
    suffixes = []
    for pair in mixed(one_text_per_row(3000, 42), Denoiser(kind="S", rate=0.25)):
        (suffix,) = hidden_spans(pair, UL2_SENTINELS)
        assert pair.source[-3:] == [suffix[0] - 1, UL2_SENTINELS[0], EOS]
        assert suffix == list(range(suffix[0], suffix[0] + len(suffix)))
        suffixes.append(len(suffix))
    assert np.mean(suffixes) == pytest.approx(10, abs=0.4)


def test_denoisers_are_drawn_by_their_weights():
    denoisers = (Denoiser(kind="R", rate=0.15, weight=3), Denoiser(kind="X", rate=0.5, weight=1))
    kinds = [MODES[pair.source[0]] for pair in mixed(one_text_per_row(4000, 12), *denoisers)]
    assert kinds.count("R") / 4000 == pytest.approx(0.75, abs=0.025)


def test_no_denoiser_reads_more_than_the_sequence_length():
    for length in (64, 128, 512):
        packed = one_text_per_row(300, UL2.reading(length).length)
        made = UL2.corrupt(packed, NOISE, UL2_VOCABULARY)
        assert made.inputs["input_ids"].shape[1] <= length
        assert len(pairs(made)) == 300


def test_samples_sorted_by_length_are_padded_little_and_mixed_as_before():
    """128 samples of 512 tokens in micro-batches of 16, as a step reads them."""
    packed = one_text_per_row(1280, UL2.reading(512).length + 1)
    length = packed.input_ids.shape[1] - 1
    lengths = UL2.lengths(NOISE)(packed.sample_ids, packed.epochs, length)
    assert [len(pair.targets) for pair in mixed(packed)] == lengths.tolist()
    columns, used, modes = np.zeros(2), np.zeros(2), []
    for step in range(10):
        order = 128 * step + np.argsort(lengths[128 * step : 128 * (step + 1)], kind="stable")
        for rows in np.split(order, 8):
            numbers = {"sample_ids": packed.sample_ids[rows], "epochs": packed.epochs[rows]}
            part = packed_of(packed.input_ids[rows], **numbers)
            made = UL2.corrupt(part, NOISE, UL2_VOCABULARY)
            shapes = [made.inputs[name].size for name in ("input_ids", "decoder_input_ids")]
            columns += shapes
            used += [(made.inputs["input_ids"] != PAD).sum(), len(made.inputs["targets"])]
            modes += [pair.source[0] for pair in pairs(made)]
    padding = 1 - used / columns
    assert (padding < [0.08, 0.12]).all()
    assert sorted(modes) == sorted(pair.source[0] for pair in mixed(packed))


def test_mode_tokens_can_be_left_out():
    config = MixtureOfDenoisers(mode_tokens=False)
    vocabulary = vocabulary_for(config)
    assert "[NLU]" not in vocabulary.roles
    made = pairs(config.corrupt(one_text_per_row(9, 60), NOISE, vocabulary))
    assert all(pair.source[0] in (4, vocabulary["<extra_id_0>"]) for pair in made)
