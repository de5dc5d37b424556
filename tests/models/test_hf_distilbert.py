from __future__ import annotations

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from models.config import TransformerConfig
from models.hf import distilbert
from models.hf.families import export_model, import_model
from models.masked_language_model import MaskedLanguageModel
from tests.models.hf_oracle import assert_export_agrees, assert_import_agrees
from tests.models.hf_parity import shapes, tensors_on_meta
from tests.published_networks import PRESETS

ARCHITECTURES = distilbert.FAMILY.architectures
COLUMNS = {"counts_columns": True}


@st.composite
def our_configs(draw) -> TransformerConfig:
    num_heads = draw(st.integers(1, 4))
    activation = draw(st.sampled_from(["gelu", "relu"]))
    return TransformerConfig(
        vocab_size=draw(st.integers(5, 70)),
        num_layers=draw(st.integers(1, 3)),
        num_heads=num_heads,
        hidden_size=num_heads * draw(st.integers(1, 8)),
        intermediate_size=draw(st.integers(1, 40)),
        max_positions=draw(st.integers(2, 20)),
        norm_eps=1e-12,
        activation=activation,
        prediction_activation=activation,
        classification_head="relu",
        tie_embeddings=draw(st.booleans()),
    )


@settings(max_examples=15, deadline=None)
@given(st.data(), st.sampled_from(sorted(ARCHITECTURES)), st.booleans(), st.sampled_from(["gelu", "relu"]))
def test_imported_network_computes_what_transformers_computes(data, name, tied, activation):
    config = transformers.DistilBertConfig(
        vocab_size=41,
        n_layers=2,
        dim=12,
        n_heads=3,
        hidden_dim=20,
        max_position_embeddings=16,
        activation=activation,
        tie_word_embeddings=tied,
        sinusoidal_pos_embds=data.draw(st.booleans()),
    )
    theirs = getattr(transformers, name)(config)
    imported = assert_import_agrees(data, theirs, pad=0, longest=16, **COLUMNS)
    assert (imported.family, imported.head) == ("DistilBERT", ARCHITECTURES[name])


@settings(max_examples=15, deadline=None)
@given(st.data(), st.sampled_from(sorted(set(ARCHITECTURES.values()))), our_configs())
def test_exported_network_computes_the_same_in_transformers_and_comes_back(data, head, config):
    assert_export_agrees(data, config, head, "DistilBERT", longest=config.max_positions, **COLUMNS)


def test_published_size_has_the_tensors_that_transformers_expects():
    config = PRESETS["distilbert-base"]
    with torch.device("meta"):
        exported = export_model(MaskedLanguageModel(config).state_dict(), config)
    assert exported.family == "DistilBERT"
    assert shapes(exported.tensors) == tensors_on_meta(exported.config)
    assert import_model(exported.tensors, exported.config).config == config


def test_bert_is_not_written_as_distilbert(small_config):
    config = small_config(norm_eps=1e-12)
    with pytest.raises(ValueError, match="classification_head is 'tanh', and it always has 'relu'"):
        export_model(MaskedLanguageModel(config).state_dict(), config, family="DistilBERT")
