"""T5's span corruption: exact lengths, all masks equally likely, and targets that give the text back."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from cluster.artefacts.errors import ConfigError
from pipeline.objectives import t5_span_corruption
from pipeline.objectives.t5_span_corruption import SpanCorruption, extra_tokens, reading
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
    pairs,
    texts,
    vocabulary_for,
    with_spans,
)

NOISE = Noise.of("train", 1)
T5 = SpanCorruption()
VOCABULARY = vocabulary_for(t5_span_corruption, T5)
SENTINELS = [VOCABULARY[f"<extra_id_{number}>"] for number in range(100)]


def corrupted(packed: Packed, config: SpanCorruption = T5) -> list[Pair]:
    return pairs(t5_span_corruption.corrupt(packed, NOISE, config, VOCABULARY))


def rows_of_raw_tokens(batch: int, raw: int) -> Packed:
    """`<s>` and `raw` tokens of a longer document in every row."""
    packed = one_text_per_row(batch, raw + 1)
    packed.input_ids[:, -1] = packed.input_ids[:, -2] + 1
    return packed


# What T5's released arithmetic gives for 15% and spans of 3: raw tokens and targets for a length of inputs.
@pytest.mark.parametrize(("length", "raw", "targets"), [(512, 568, 114), (256, 284, 58), (128, 141, 29)])
def test_lengths_are_those_of_t5(length: int, raw: int, targets: int):
    assert reading(T5, length).length == raw + 1
    made = t5_span_corruption.corrupt(rows_of_raw_tokens(3, raw), NOISE, T5, VOCABULARY)
    assert made.inputs["input_ids"].shape == (3, length)
    assert made.inputs["decoder_input_ids"].shape == (3, targets)
    assert "cu_seqlens" not in made.inputs
    assert made.counts == {"denoise": 3 * targets}
    assert PAD not in made.inputs["input_ids"]


def test_15_percent_is_hidden_in_spans_of_mean_3():
    for pair in corrupted(rows_of_raw_tokens(50, 568)):
        lengths = [len(span) for span in hidden_spans(pair, SENTINELS)]
        assert sum(lengths) == 85
        assert len(lengths) == 28
        assert min(lengths) >= 1


def test_every_mask_is_equally_likely():
    """Of 9 tokens 4 are hidden in 2 spans: 3 ways to cut the hidden, 4 ways to cut the shown."""
    config = SpanCorruption(rate=0.45, mean_span_length=2)
    masks = Counter(tuple(pair.source) for pair in corrupted(rows_of_raw_tokens(12_000, 9), config))
    assert len(masks) == 3 * 4
    assert chisquare(list(masks.values())).pvalue > 1e-3


def test_lengths_of_long_texts_are_cut_like_random_compositions():
    lengths = np.concatenate(
        [
            [len(span) for span in hidden_spans(pair, SENTINELS)]
            for pair in corrupted(rows_of_raw_tokens(2000, 568))
        ]
    )
    # A part of a random composition of 85 into 28 is at least k + 1 with the chance C(84 - k, 27) / C(84, 27).
    chance = 1.0
    for shorter in range(8):
        assert np.mean(lengths > shorter) == pytest.approx(chance, abs=0.01)
        chance *= (84 - shorter - 27) / (84 - shorter)


def test_texts_begin_with_what_is_shown_and_end_with_a_span():
    for pair in corrupted(rows_of_raw_tokens(20, 200)):
        assert pair.source[0] not in SENTINELS
        assert pair.source[-2:] == [SENTINELS[len(hidden_spans(pair, SENTINELS)) - 1], EOS]
        assert not any(
            one in SENTINELS and two in SENTINELS
            for one, two in zip(pair.source, pair.source[1:], strict=False)
        )


@given(
    st.integers(0, 10**6),
    st.integers(1, 4),
    st.integers(4, 120),
    st.sampled_from([T5, SpanCorruption(rate=0.5), SpanCorruption(rate=0.9, mean_span_length=1)]),
)
def test_sentinels_and_spans_give_the_text_back(seed: int, batch: int, length: int, config: SpanCorruption):
    packed = many_texts_per_row(seed, batch, length)
    written = [[token for token in text if token not in (BOS, EOS)] for text in texts(packed)]
    found = corrupted(packed, config)
    assert [with_spans(pair, SENTINELS) for pair in found] == [text for text in written if len(text) >= 2]
    for pair in found:
        assert pair.source[-1] == pair.targets[-1] == EOS
        assert pair.decoder_inputs == [PAD, *pair.targets[:-1]]
        assert not {BOS, PAD} & {*pair.source, *pair.targets}


def test_rows_of_many_tiny_texts_lose_nothing():
    """Each of them costs a sentinel and two `</s>`, so that the decoder's rows get wider than T5's."""
    packed = many_texts_per_row(1, 8, 569, longest=4)
    made = t5_span_corruption.corrupt(packed, NOISE, T5, VOCABULARY)
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
    assert extra_tokens(T5, ())[-1] == "<extra_id_0>"
    assert not any(VOCABULARY.is_special[: SENTINELS[-1]][4:])


def test_too_few_sentinels_are_refused_before_anything_is_read():
    with pytest.raises(ConfigError, match="28 spans, but there are sentinels for 20") as error:
        reading(SpanCorruption(num_sentinels=20), 512)
    assert "num_sentinels by 8" in str(error.value)


def test_subsets_are_all_equally_likely():
    from pipeline.samples.noise import choose

    states = Noise.of("subsets").at(np.arange(12_000)).bits()
    counts = Counter(tuple(np.flatnonzero(choose(3, 6, state)).tolist()) for state in states)
    assert set(counts) == set(combinations(range(6), 3))
    assert chisquare(list(counts.values())).pvalue > 1e-3
