from __future__ import annotations

import copy
import json
from typing import Any

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from models.causal_language_model import CausalLanguageModel
from models.config import TransformerConfig
from models.decoder_classifier import DecoderClassifier
from models.generation.config import GenerationConfig
from models.generation.generate import generate
from models.hf.families import export_model, import_model
from models.initialization import init_weights
from tests.models.hf_oracle import assert_export_agrees, assert_import_agrees
from tests.models.hf_parity import (
    TOKENS,
    assert_same_training,
    export_of,
    shapes,
    some_tokens,
    tensors_on_meta,
)
from tests.published_networks import PRESETS

LLAMA: dict[str, Any] = {
    "network": "decoder",
    "norm": "pre",
    "norm_kind": "rms",
    "biases": False,
    "embedding_norm": False,
    "positions": "rotary",
    "gated": True,
    "dropout": 0.0,
}
HEADS = [(4, None), (4, 2), (4, 1), (6, 3), (3, 1)]
"""Heads of queries, and of keys and values."""


@st.composite
def our_configs(draw) -> TransformerConfig:
    heads, key_value_heads = draw(st.sampled_from(HEADS))
    return TransformerConfig(
        **LLAMA,
        vocab_size=61,
        max_positions=24,
        num_layers=draw(st.integers(1, 3)),
        num_heads=heads,
        num_key_value_heads=key_value_heads,
        hidden_size=heads * 4,
        attention_head_size=draw(st.sampled_from([None, 6])),
        intermediate_size=draw(st.integers(1, 50)),
        activation=draw(st.sampled_from(["silu", "gelu"])),
        rotary_base=draw(st.sampled_from([10000.0, 500000.0, 7.0])),
        tie_embeddings=draw(st.booleans()),
        norm_eps=draw(st.sampled_from([1e-5, 1e-6, 0.1])),
    )


@st.composite
def their_configs(draw) -> transformers.LlamaConfig:
    heads, key_value_heads = draw(st.sampled_from(HEADS))
    return transformers.LlamaConfig(
        vocab_size=61,
        max_position_embeddings=24,
        num_hidden_layers=draw(st.integers(1, 3)),
        num_attention_heads=heads,
        num_key_value_heads=key_value_heads,
        hidden_size=heads * 4,
        head_dim=draw(st.sampled_from([None, 6])),
        intermediate_size=draw(st.integers(1, 50)),
        hidden_act=draw(st.sampled_from(["silu", "gelu_pytorch_tanh"])),
        rope_parameters={"rope_type": "default", "rope_theta": draw(st.sampled_from([1e4, 5e5, 7.0]))},
        tie_word_embeddings=draw(st.booleans()),
        rms_norm_eps=draw(st.sampled_from([1e-5, 1e-6, 0.1])),
        pad_token_id=0,
    )


@pytest.fixture(scope="module")
def network(randomise) -> CausalLanguageModel:
    sizes: dict[str, Any] = {"num_layers": 2, "hidden_size": 16, "num_heads": 4, "num_key_value_heads": 2}
    config = TransformerConfig(
        **LLAMA | sizes, vocab_size=61, intermediate_size=40, activation="silu", attention_dropout=0.0
    )
    model = CausalLanguageModel(config).eval()
    init_weights(model, 1)
    randomise(model, 2)
    return model


@pytest.mark.parametrize("head", ["causal_lm", "sequence_classification"])
@settings(max_examples=8, deadline=None)
@given(data=st.data(), config=our_configs())
def test_exported_network_computes_the_same_in_transformers(data, config, head):
    assert_export_agrees(data, config, head, "LLaMA", longest=20, counts_columns=True)


@pytest.mark.parametrize("name", ["LlamaForCausalLM", "LlamaForSequenceClassification"])
@settings(max_examples=8, deadline=None)
@given(data=st.data(), config=their_configs())
def test_imported_network_computes_what_transformers_computes(data, config, name):
    theirs = getattr(transformers, name)(config)
    imported = assert_import_agrees(data, theirs, pad=0, longest=20, counts_columns=True)
    assert imported.family == "LLaMA"
    assert imported.config.key_value_heads == config.num_key_value_heads


def test_training_step_is_that_of_transformers(network):
    ours, tokens = copy.deepcopy(network), some_tokens(2, 12, 3)
    places = torch.arange(24).view(2, 12)[:, :-1].flatten()
    batch = {"input_ids": tokens, "predicted_positions": places, "targets": tokens[:, 1:].flatten()}
    assert_same_training(ours, export_of(ours, ours.config), batch, {"input_ids": tokens, "labels": tokens})


@torch.no_grad()
def test_cache_holds_the_shared_heads_only_and_generation_is_that_of_transformers(network):
    theirs, prompt = export_of(network, network.config), some_tokens(2, 5, 1)
    cache = network.decoder.new_cache()
    network.logits(prompt, cache=cache)
    assert cache.self_attention[0].pair()[0].shape == (2, 2, 5, 4)
    mask = torch.ones_like(prompt)
    expected = theirs.generate(
        prompt, attention_mask=mask, max_new_tokens=9, min_new_tokens=9, do_sample=False
    )
    config = GenerationConfig(max_new_tokens=9, min_new_tokens=9, eos_token_id=5, pad_token_id=3)
    assert generate(network, prompt, config=config).sequences.equal(expected)


@pytest.mark.parametrize("name", ["llama-7b", "llama-1.1b", "llama3-8b"])
def test_published_sizes_have_the_tensors_that_transformers_expects(name):
    config = PRESETS[name]
    with torch.device("meta"):
        state = CausalLanguageModel(config).state_dict()
    exported = export_model(state, config)
    assert exported.family == "LLaMA"
    assert shapes(exported.tensors) == tensors_on_meta(exported.config)
    assert import_model(exported.tensors, exported.config).config == config


def test_published_config_json_of_an_older_transformers_is_read():
    """TinyLlama's, as it is on the hub: `rope_theta` has no group of its own."""
    published = json.loads("""{
      "architectures": ["LlamaForCausalLM"], "attention_bias": false, "bos_token_id": 1, "eos_token_id": 2,
      "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 5632,
      "max_position_embeddings": 2048, "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 22,
      "num_key_value_heads": 4, "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": null,
      "rope_theta": 10000.0, "tie_word_embeddings": false, "use_cache": true, "vocab_size": 32000}""")
    config = PRESETS["llama-1.1b"]
    with torch.device("meta"):
        tensors = export_model(CausalLanguageModel(config).state_dict(), config).tensors
    buffer = torch.empty(32, device="meta")
    tensors |= {f"model.layers.{number}.self_attn.rotary_emb.inv_freq": buffer for number in range(22)}
    assert import_model(tensors, published).config == config


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rope_parameters": {"rope_type": "llama3", "factor": 32.0}}, "rope_type = 'llama3'"),
        ({"rope_parameters": None, "rope_scaling": {"type": "linear", "factor": 2.0}}, "type = 'linear'"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor = 0.5"),
        ({"attention_bias": True}, "attention_bias = True"),
        ({"mlp_bias": True}, "mlp_bias = True"),
        ({"hidden_act": "mish"}, "hidden_act = 'mish' is not supported"),
        ({"num_key_value_heads": 3}, r"num_key_value_heads \(3\) must divide num_heads \(4\)"),
        ({"num_key_value_heads": 1}, r"k_proj.weight is \[8, 16\], expected \[4, 16\]"),
    ],
)
def test_computation_that_the_core_has_not_is_refused(network, change, message):
    exported = export_model(network.state_dict(), network.config, TOKENS)
    with pytest.raises(ValueError, match=message):
        import_model(exported.tensors, exported.config | change)


def test_grouped_queries_are_refused_by_families_without_them(small_config):
    config = small_config(network="decoder", norm="pre", embedding_norm=False, num_key_value_heads=2)
    with pytest.raises(ValueError, match="GPT-2: num_key_value_heads is 2, and it always has None"):
        export_model(CausalLanguageModel(config).state_dict(), config, TOKENS)


def test_classifier_takes_the_class_of_transformers(network):
    model = DecoderClassifier(network.config, 3)
    init_weights(model, 1)
    assert isinstance(export_of(model, network.config), transformers.LlamaForSequenceClassification)
