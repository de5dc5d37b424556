"""Span corruption of T5 and UL2: exact lengths, all masks equally likely; and pairs of texts side by side in rows."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.stats import chisquare

from cluster.artefacts.errors import ConfigError
from pipeline.objectives.encoder_decoder import WIDENING, TextPairs, assemble_rows
from pipeline.objectives.t5_span_corruption import SpanCorruption
from pipeline.objectives.ul2_mixture_of_denoisers import Denoiser, MixtureOfDenoisers
from pipeline.samples.noise import Noise, choose
from pipeline.samples.packed import Packed
from tests.pipeline.packed_texts import (
    BOS,
    EOS,
    FIRST_TEXT,
    PAD,
    UNK,
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


def test_every_mask_is_equally_likely():
    """Of 9 tokens 4 are hidden in 2 spans: 3 ways to cut the hidden, 4 ways to cut the shown."""
    config = SpanCorruption(rate=0.45, mean_span_length=2)
    masks = Counter(tuple(pair.source) for pair in corrupted(rows_of_raw_tokens(12_000, 9), config))
    assert len(masks) == 3 * 4
    assert chisquare(list(masks.values())).pvalue > 1e-3


def test_lengths_of_long_texts_are_cut_like_random_compositions():
    lengths = np.concatenate([span_sizes(pair) for pair in corrupted(rows_of_raw_tokens(2000, 568))])
    # A part of a random composition of 85 into 28 is at least k + 1 with the chance C(84 - k, 27) / C(84, 27).
    chance = 1.0
    for shorter in range(8):
        assert np.mean(lengths > shorter) == pytest.approx(chance, abs=0.01)
        chance *= (84 - shorter - 27) / (84 - shorter)


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


def test_subsets_are_all_equally_likely():
    states = Noise.of("subsets").at(np.arange(12_000)).bits()
    counts = Counter(tuple(np.flatnonzero(choose(3, 6, state)).tolist()) for state in states)
    assert set(counts) == set(combinations(range(6), 3))
    assert chisquare(list(counts.values())).pvalue > 1e-3


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
        assert pair.source[-2:] == [UL2_SENTINELS[0], EOS]
        assert suffix == list(range(suffix[0], suffix[0] + len(suffix)))
        assert pair.source[-3] == suffix[0] - 1
        suffixes.append(len(suffix))
    assert np.mean(suffixes) == pytest.approx(10, abs=0.4)
    assert chisquare(np.bincount(suffixes, minlength=20)[1:]).pvalue > 1e-3
    assert max(suffixes) == 19


def test_a_single_long_span_lies_anywhere():
    """Only the S denoiser is bound to the end of the text."""
    denoiser, starts = Denoiser(kind="X", rate=0.15, mean_span_length=64), []
    for pair in mixed(one_text_per_row(6000, 42), denoiser):
        ((first, *others),) = hidden_spans(pair, UL2_SENTINELS)
        assert others == list(range(first + 1, first + 6))
        starts.append(first - 4)
    assert chisquare(np.bincount(starts, minlength=35)).pvalue > 1e-3
    assert max(starts) == 34


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
            part = replace(
                packed,
                input_ids=packed.input_ids[rows],
                cu_seqlens=packed.cu_seqlens[: len(rows) + 1],
                sample_ids=packed.sample_ids[rows],
                epochs=packed.epochs[rows],
            )
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


def text_pairs(lengths: list[list[tuple[int, int]]]) -> TextPairs:
    """Pairs with these source and target lengths, row by row; no token stands twice."""
    flat = [pair for row in lengths for pair in row]
    sources, targets = sum(one for one, _ in flat), sum(two for _, two in flat)
    return TextPairs(
        sources=np.arange(FIRST_TEXT, FIRST_TEXT + sources),
        targets=np.arange(FIRST_TEXT + sources, FIRST_TEXT + sources + targets),
        source_lengths=np.asarray([one for one, _ in flat], dtype=np.int64),
        target_lengths=np.asarray([two for _, two in flat], dtype=np.int64),
        rows=np.repeat(np.arange(len(lengths)), [len(row) for row in lengths]),
        origins=np.empty(0, dtype=np.int64),
    )


ROWS = st.lists(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), max_size=4), min_size=1, max_size=4)


@given(ROWS, st.integers(4, 30), st.integers(4, 30))
def test_piece_i_of_the_decoder_belongs_to_piece_i_of_the_encoder(
    lengths: list[list[tuple[int, int]]], source_width: int, target_width: int
):
    given_pairs = text_pairs(lengths)
    batch = assemble_rows(given_pairs, len(lengths), (source_width, target_width), PAD, UNK)
    found = pairs(batch)
    sources = np.split(given_pairs.sources, np.cumsum(given_pairs.source_lengths)[:-1])
    targets = np.split(given_pairs.targets, np.cumsum(given_pairs.target_lengths)[:-1])
    assert [pair.source for pair in found] == [source.tolist() for source in sources if len(source)]
    assert [pair.targets for pair in found] == [target.tolist() for target in targets if len(target)]
    assert [pair.row for pair in found] == given_pairs.rows.tolist()
    assert all(pair.decoder_inputs == [UNK, *pair.targets[:-1]] for pair in found)
    for name, width in (("input_ids", source_width), ("decoder_input_ids", target_width)):
        assert batch.inputs[name].shape[0] == len(lengths)
        assert (batch.inputs[name].shape[1] - width) % WIDENING == 0


@pytest.mark.parametrize(
    ("lengths", "encoder", "decoder"),
    [
        pytest.param([[(5, 3)], [(5, 3)]], None, None, id="rows that fit exactly need no boundaries"),
        pytest.param(
            [[(4, 3)], [(5, 3)]], [0, 4, 5, 10], [0, 3, 3, 6], id="padding beside a full decoder's row"
        ),
        pytest.param([[(2, 1), (3, 1)]], [0, 2, 5], [0, 1, 3], id="padding beside a full encoder's row"),
    ],
)
def test_padding_is_a_piece_of_its_own_or_stays_with_the_last(
    lengths: list[list[tuple[int, int]]], encoder: list[int] | None, decoder: list[int] | None
):
    inputs = assemble_rows(text_pairs(lengths), len(lengths), (5, 3), PAD, UNK).inputs
    boundaries = [inputs.get(name) for name in ("cu_seqlens", "decoder_cu_seqlens")]
    assert [None if each is None else each.tolist() for each in boundaries] == [encoder, decoder]
    assert len(inputs["predicted_positions"]) == sum(size for row in lengths for _, size in row)
