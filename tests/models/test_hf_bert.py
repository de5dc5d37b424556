from __future__ import annotations

import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from models.config import TransformerConfig
from models.hf import bert
from models.hf.families import import_model
from tests.models.hf_oracle import assert_export_agrees, assert_import_agrees, built

COLUMNS = {"counts_columns": True}


@st.composite
def our_configs(draw) -> TransformerConfig:
    num_heads = draw(st.integers(1, 4))
    activation = draw(st.sampled_from(["gelu", "gelu_tanh", "relu"]))
    return TransformerConfig(
        vocab_size=draw(st.integers(5, 70)),
        num_layers=draw(st.integers(1, 3)),
        num_heads=num_heads,
        hidden_size=num_heads * draw(st.integers(1, 8)),
        intermediate_size=draw(st.integers(1, 40)),
        max_positions=draw(st.integers(2, 20)),
        num_segments=draw(st.integers(1, 3)),
        norm_eps=draw(st.sampled_from([1e-12, 1e-5])),
        activation=activation,
        prediction_activation=activation,
        tie_embeddings=draw(st.booleans()),
        dropout=draw(st.sampled_from([0.0, 0.1])),
    )


@st.composite
def their_configs(draw) -> transformers.BertConfig:
    num_heads = draw(st.integers(1, 4))
    vocab_size = draw(st.integers(5, 70))
    return transformers.BertConfig(
        vocab_size=vocab_size,
        num_hidden_layers=draw(st.integers(1, 3)),
        num_attention_heads=num_heads,
        hidden_size=num_heads * draw(st.integers(1, 8)),
        intermediate_size=draw(st.integers(1, 40)),
        max_position_embeddings=draw(st.integers(2, 20)),
        type_vocab_size=draw(st.integers(1, 3)),
        hidden_act=draw(st.sampled_from(["gelu", "gelu_new", "gelu_pytorch_tanh", "relu"])),
        layer_norm_eps=draw(st.sampled_from([1e-12, 1e-5])),
        pad_token_id=draw(st.integers(0, vocab_size - 1)),
        tie_word_embeddings=draw(st.booleans()),
        num_labels=2,
    )


@settings(max_examples=25, deadline=None)
@given(st.data(), st.sampled_from(sorted(bert.FAMILY.architectures)), their_configs())
def test_imported_network_computes_what_transformers_computes(data, name, config):
    theirs = getattr(transformers, name)(config)
    longest = config.max_position_embeddings
    imported = assert_import_agrees(data, theirs, pad=config.pad_token_id, longest=longest, **COLUMNS)
    assert imported.head == bert.FAMILY.architectures[name]


@settings(max_examples=20, deadline=None)
@given(st.data(), st.sampled_from(sorted(bert.FAMILY.architectures.values())), our_configs())
def test_exported_network_computes_the_same_in_transformers_and_comes_back(data, head, config):
    assert_export_agrees(data, config, head, "BERT", longest=config.max_positions, **COLUMNS)


def test_heads_and_names_of_the_first_published_files_are_understood():
    config = transformers.BertConfig(
        vocab_size=31, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8
    )
    theirs = transformers.BertForPreTraining(config)
    stored = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): tensor
        for name, tensor in theirs.state_dict().items()
    }
    stored["bert.embeddings.position_ids"] = torch.arange(512).unsqueeze(0)
    published = config.to_dict() | {"architectures": ["BertForMaskedLM"]}
    ours = built(import_model(stored, published))
    input_ids = torch.randint(31, (2, 7))
    with torch.no_grad():
        expected = theirs.eval()(input_ids).prediction_logits
        torch.testing.assert_close(ours.logits(input_ids), expected, atol=1e-4, rtol=0)
