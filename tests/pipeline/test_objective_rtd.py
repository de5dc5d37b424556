"""ELECTRA's objective: masks alone, and every token judged; the sizes of the generator."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.artefacts.errors import ConfigError
from pipeline.objectives import rtd
from pipeline.objectives.rtd import GeneratorSize, ReplacedTokenDetection, corrupt, generator_config
from pipeline.samples.noise import Noise
from tests.pipeline.packed_texts import PAD, many_texts_per_row, vocabulary_for
from tests.published_networks import PRESETS

VOCABULARY = vocabulary_for(rtd, ReplacedTokenDetection())
NOISE = Noise.of("train", 1)


@given(st.integers(0, 999), st.floats(0.05, 0.5))
def test_what_is_predicted_is_masked_and_all_tokens_but_padding_are_judged(seed: int, rate: float):
    packed = many_texts_per_row(seed, 4, 40)
    batch = corrupt(packed, NOISE, ReplacedTokenDetection(rate=rate), VOCABULARY)
    ids, read = packed.input_ids.reshape(-1), batch.inputs["input_ids"].reshape(-1)
    positions = batch.inputs["predicted_positions"]
    assert (read[positions] == VOCABULARY["mask"]).all()
    assert np.array_equal(np.flatnonzero(read != ids), positions)
    assert np.array_equal(batch.inputs["targets"], ids[positions])
    assert not VOCABULARY.is_special[batch.inputs["targets"]].any()
    assert np.array_equal(batch.inputs["token_positions"], np.flatnonzero(ids != PAD))
    assert batch.counts == {"mlm": len(positions), "rtd": (ids != PAD).sum()}
    maskable = (~VOCABULARY.is_special[packed.input_ids]).sum(1)
    wanted = np.maximum(np.rint(rate * maskable), np.minimum(maskable, 1))
    assert np.array_equal(np.bincount(positions // 40, minlength=4), wanted)


@pytest.mark.parametrize(
    ("name", "share", "expected"),
    # Clark et al. 2020, table 6: generator size 1/4, 1/3 and 1/4 of the hidden and feed-forward size and the heads.
    [
        ("electra-small", 1 / 4, (64, 256, 1)),
        ("electra-base", 1 / 3, (256, 1024, 4)),
        ("electra-large", 1 / 4, (256, 1024, 4)),
    ],
)
def test_generators_have_the_published_shares(name, share, expected):
    config = PRESETS[name]
    generator = generator_config(GeneratorSize(hidden_share=share), config)
    assert (generator.hidden_size, generator.intermediate_size, generator.num_heads) == expected
    assert generator.num_layers == config.num_layers
    assert generator.embedding_width == config.embedding_width
    half = generator_config(GeneratorSize(layers_share=0.5), config)
    assert half.num_layers == config.num_layers // 2


def test_generator_that_cannot_be_built_is_refused_in_words():
    rotary = PRESETS["modernbert-base"]
    with pytest.raises(ConfigError, match=r"objective\.generator.*even head size"):
        generator_config(GeneratorSize(hidden_share=0.25, num_heads=64), rotary)


def test_the_discriminator_weighs_50():
    assert [term.weight for term in rtd.terms(ReplacedTokenDetection()).values()] == [1.0, 50.0]
