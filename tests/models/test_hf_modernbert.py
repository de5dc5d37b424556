from __future__ import annotations

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from models.config import TransformerConfig
from models.hf import modernbert
from models.hf.families import import_model
from tests.models.hf_oracle import assert_export_agrees, assert_import_agrees

LONGEST = 40
"""Tokens of the longest row: longer than every local window that is drawn."""


@st.composite
def our_configs(draw) -> TransformerConfig:
    num_heads = draw(st.integers(1, 3))
    num_layers = draw(st.integers(1, 5))
    window = draw(st.sampled_from([None, 1, 2, 5, 8, 16])) if num_layers > 1 else None
    return TransformerConfig(
        vocab_size=draw(st.integers(5, 70)),
        num_layers=num_layers,
        num_heads=num_heads,
        hidden_size=num_heads * 2 * draw(st.integers(1, 5)),
        intermediate_size=draw(st.integers(1, 40)),
        max_positions=LONGEST,
        positions="rotary",
        rotary_base=draw(st.sampled_from([10000.0, 160000.0])),
        local_rotary_base=draw(st.sampled_from([100.0, 10000.0])) if window else None,
        local_window=window,
        global_every=draw(st.integers(2, 4)) if window else 3,
        norm="pre",
        first_norm=False,
        biases=draw(st.booleans()),
        gated=True,
        norm_eps=draw(st.sampled_from([1e-12, 1e-5])),
        activation=draw(st.sampled_from(["gelu", "gelu_tanh", "relu"])),
        dropout=draw(st.sampled_from([0.0, 0.1])),
        attention_dropout=0.0,
        activation_dropout=draw(st.sampled_from([0.0, 0.1])),
        initializer="scaled_residual",
        tie_embeddings=draw(st.booleans()),
        classification_head="gelu_norm",
    )


@st.composite
def their_configs(draw) -> transformers.ModernBertConfig:
    num_heads = draw(st.integers(1, 3))
    vocab_size = draw(st.integers(5, 70))
    switches = ("attention_bias", "mlp_bias", "norm_bias", "classifier_bias", "decoder_bias")
    return transformers.ModernBertConfig(
        vocab_size=vocab_size,
        num_hidden_layers=draw(st.integers(1, 5)),
        num_attention_heads=num_heads,
        hidden_size=num_heads * 2 * draw(st.integers(1, 5)),
        intermediate_size=draw(st.integers(1, 40)),
        max_position_embeddings=LONGEST,
        local_attention=draw(st.sampled_from([2, 5, 8, 16])),
        global_attn_every_n_layers=draw(st.integers(1, 4)),
        global_rope_theta=draw(st.sampled_from([10000.0, 160000.0])),
        local_rope_theta=draw(st.sampled_from([100.0, 10000.0])),
        hidden_activation=draw(st.sampled_from(["gelu", "gelu_new", "relu"])),
        pad_token_id=draw(st.integers(0, vocab_size - 1)),
        bos_token_id=0,
        eos_token_id=1,
        cls_token_id=0,
        sep_token_id=1,
        tie_word_embeddings=draw(st.booleans()),
        num_labels=2,
        **{name: draw(st.booleans()) for name in switches},
    )


@settings(max_examples=25, deadline=None)
@given(st.data(), st.sampled_from(sorted(modernbert.FAMILY.architectures)), their_configs())
def test_imported_network_computes_what_transformers_computes(data, name, config):
    theirs = getattr(transformers, name)(config)
    imported = assert_import_agrees(data, theirs, pad=config.pad_token_id, longest=LONGEST)
    assert imported.head == modernbert.FAMILY.architectures[name]


@settings(max_examples=25, deadline=None)
@given(st.data(), st.sampled_from(sorted(modernbert.FAMILY.architectures.values())), our_configs())
def test_exported_network_computes_the_same_in_transformers_and_comes_back(data, head, config):
    assert_export_agrees(data, config, head, "ModernBERT", longest=LONGEST)


SMALL = {
    "vocab_size": 31,
    "hidden_size": 8,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "intermediate_size": 8,
    "pad_token_id": 0,
}


def published(head: str = "ForMaskedLM", **keys) -> tuple[dict[str, torch.Tensor], dict]:
    name = f"ModernBert{head}"
    theirs = getattr(transformers, name)(transformers.ModernBertConfig(**SMALL))
    return theirs.state_dict(), theirs.config.to_dict() | {"architectures": [name]} | keys


def test_keys_of_older_files_are_understood():
    tensors, keys = published(global_attn_every_n_layers=2, global_rope_theta=5e4, local_rope_theta=3e3)
    older = {key: value for key, value in keys.items() if key not in ("layer_types", "rope_parameters")}
    config = import_model(tensors, older).config
    assert (config.global_every, config.rotary_base, config.local_rotary_base) == (2, 5e4, 3e3)


@pytest.mark.parametrize(
    ("head", "keys", "message"),
    [
        ("ForSequenceClassification", {"classifier_pooling": "mean"}, "classifier_pooling = 'mean'"),
        ("ForSequenceClassification", {"classifier_activation": "relu"}, "classifier_activation = 'relu'"),
        ("ForMaskedLM", {"hidden_activation": "mish"}, "hidden_activation = 'mish'.*gelu"),
        ("ForMaskedLM", {"layer_types": ["sliding_attention"] * 4}, "layer_types"),
        (
            "ForMaskedLM",
            {"rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 2.0}}},
            "rope_type = 'linear'",
        ),
    ],
)
def test_what_changes_the_computation_is_refused(head, keys, message):
    with pytest.raises(ValueError, match=message):
        import_model(*published(head, **keys))
