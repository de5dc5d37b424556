from __future__ import annotations

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from models.config import TransformerConfig
from models.electra import Electra
from models.hf import electra
from models.hf.family import TokenIds
from models.hf.parts import generator_part
from models.initialization import init_weights
from models.masked_language_model import MaskedLanguageModel
from tests.models.hf_oracle import (
    PaddedBatch,
    assert_export_agrees,
    assert_import_agrees,
    assert_same_outputs,
    opened_by_transformers,
    shake,
)

COLUMNS = {"counts_columns": True}


@st.composite
def our_configs(draw) -> TransformerConfig:
    num_heads = draw(st.integers(1, 4))
    hidden = num_heads * draw(st.integers(1, 8))
    width = draw(st.integers(1, 20))
    return TransformerConfig(
        vocab_size=draw(st.integers(5, 70)),
        num_layers=draw(st.integers(1, 3)),
        num_heads=num_heads,
        hidden_size=hidden,
        embedding_size=None if width == hidden else width,
        intermediate_size=draw(st.integers(1, 40)),
        max_positions=draw(st.integers(2, 20)),
        num_segments=draw(st.integers(1, 3)),
        norm_eps=draw(st.sampled_from([1e-12, 1e-5])),
        activation=draw(st.sampled_from(["gelu", "gelu_tanh", "relu"])),
        tie_embeddings=draw(st.booleans()),
        dropout=draw(st.sampled_from([0.0, 0.1])),
        classification_head="gelu",
    )


@st.composite
def their_configs(draw) -> transformers.ElectraConfig:
    num_heads = draw(st.integers(1, 4))
    vocab_size = draw(st.integers(5, 70))
    hidden = num_heads * draw(st.integers(1, 8))
    return transformers.ElectraConfig(
        vocab_size=vocab_size,
        num_hidden_layers=draw(st.integers(1, 3)),
        num_attention_heads=num_heads,
        hidden_size=hidden,
        embedding_size=draw(st.sampled_from([hidden, 3, 12])),
        intermediate_size=draw(st.integers(1, 40)),
        max_position_embeddings=draw(st.integers(2, 20)),
        type_vocab_size=draw(st.integers(1, 3)),
        hidden_act=draw(st.sampled_from(["gelu", "gelu_new", "gelu_pytorch_tanh", "relu"])),
        layer_norm_eps=draw(st.sampled_from([1e-12, 1e-5])),
        pad_token_id=draw(st.integers(0, vocab_size - 1)),
        tie_word_embeddings=draw(st.booleans()),
        num_labels=2,
    )


@settings(max_examples=20, deadline=None)
@given(st.data(), st.sampled_from(sorted(electra.FAMILY.architectures)), their_configs())
def test_imported_network_computes_what_transformers_computes(data, name, config):
    theirs = getattr(transformers, name)(config)
    longest = config.max_position_embeddings
    imported = assert_import_agrees(data, theirs, pad=config.pad_token_id, longest=longest, **COLUMNS)
    assert imported.head == electra.FAMILY.architectures[name]


@settings(max_examples=20, deadline=None)
@given(st.data(), st.sampled_from(sorted(electra.FAMILY.architectures.values())), our_configs())
def test_exported_network_computes_the_same_in_transformers_and_comes_back(data, head, config):
    assert_export_agrees(data, config, head, "ELECTRA", longest=config.max_positions, **COLUMNS)


@pytest.fixture
def pair() -> Electra:
    """Generator and discriminator, of different widths."""
    fields = {
        "vocab_size": 31,
        "num_layers": 2,
        "intermediate_size": 12,
        "max_positions": 9,
        "num_segments": 2,
    }
    config = TransformerConfig(
        hidden_size=12, num_heads=3, embedding_size=6, classification_head="gelu", **fields
    )
    generator = TransformerConfig(hidden_size=8, num_heads=2, embedding_size=6, **fields)
    model = Electra(config, generator).eval()
    init_weights(model, 1)
    shake(model, 1)
    return model


@pytest.fixture
def batch() -> PaddedBatch:
    ids = torch.randint(1, 31, (3, 9), generator=torch.Generator().manual_seed(0))
    mask = torch.arange(9) < torch.tensor([[9], [4], [1]])
    return PaddedBatch(ids.where(mask, 0), mask, ids % 2)


def test_discriminator_of_a_pre_trained_pair_is_what_is_exported(pair, batch):
    head = "replaced_token_detection"
    theirs, exported = opened_by_transformers(pair, pair.config, head, TokenIds(0, 1, 2))
    assert (exported.family, type(theirs).__name__) == ("ELECTRA", "ElectraForPreTraining")
    assert "generator is left out" in exported.notes[0]
    assert_same_outputs(pair.discriminator, theirs, pair.config, head, batch)


def test_generator_of_a_pre_trained_pair_is_exported_with_the_embeddings_that_it_shares(pair, batch):
    config = pair.generator.config
    alone = MaskedLanguageModel(config).eval()
    alone.load_state_dict(generator_part(pair.state_dict()))
    theirs, exported = opened_by_transformers(alone, config, "masked_lm", TokenIds(0, 1, 2))
    assert (exported.family, type(theirs).__name__) == ("ELECTRA", "ElectraForMaskedLM")
    assert_same_outputs(alone, theirs, config, "masked_lm", batch)
    positions = torch.tensor([0, 3])
    with torch.no_grad():
        hidden = pair.generator(batch.input_ids[:1], positions, segment_ids=batch.segment_ids[:1])
        expected = pair.generator.head(hidden, pair.generator.encoder.embeddings.token_weight)
        found = alone.logits(batch.input_ids[:1], segment_ids=batch.segment_ids[:1])[0, positions]
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
