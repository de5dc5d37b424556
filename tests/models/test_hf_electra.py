from __future__ import annotations

import pytest
import torch

from models.config import TransformerConfig
from models.electra import Electra
from models.hf.family import TokenIds
from models.hf.parts import generator_part
from models.initialization import init_weights
from models.masked_language_model import MaskedLanguageModel
from tests.models.hf_oracle import (
    PaddedBatch,
    assert_same_outputs,
    opened_by_transformers,
    shake,
)


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
