"""What a family or our networks cannot carry is refused, in both directions, and the message names it."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import transformers

from models.hf.families import Exported, export_model, import_model
from models.hf.heads import Head
from models.hf.networks import build_on_meta
from tests.models.hf_configs import small
from tests.models.hf_oracle import TOKENS, random_network

HEADS: dict[str, Head] = {"encoder": "masked_lm", "decoder": "causal_lm", "encoder_decoder": "seq2seq_lm"}


def exported_as(family: str) -> Exported:
    """A small random network of a family, as it is written."""
    config = small(family)
    network = random_network(config, HEADS[config.network], 1)
    return export_model(network.state_dict(), config, TOKENS, family=family)


NOT_CARRIED: dict[str, list[dict[str, Any]]] = {
    "BART": [
        {"norm_eps": 1e-12},
        {"positions": "sinusoidal"},
        {"embedding_norm": False},
        {"biases": False},
        {"gated": True},
        {"scale_logits": True},
        {"norm_kind": "rms"},
    ],
    "T5": [
        {"norm": "post"},
        {"positions": "learned"},
        {"embedding_norm": True},
        {"scale_attention": True},
        {"scale_embeddings": True},
        {"norm_kind": "layer"},
        {"biases": True},
    ],
    "GPT-2": [
        {"norm": "post"},
        {"positions": "rotary"},
        {"norm_kind": "rms"},
        {"gated": True},
        {"local_window": 4},
        {"attention_head_size": 8},
        {"biases": False},
        {"num_segments": 2},
        {"scale_logits": True},
        {"num_key_value_heads": 2},
    ],
    "DistilBERT": [{"classification_head": "tanh"}],
}


@pytest.mark.parametrize(
    ("family", "change"), [(family, change) for family, changes in NOT_CARRIED.items() for change in changes]
)
def test_network_that_a_family_cannot_carry_is_refused_by_the_field(family, change):
    config = small(family, **change)
    ((field, value),) = change.items()
    state = build_on_meta(config, HEADS[config.network]).state_dict()
    with pytest.raises(ValueError, match=f"{family}.*{field} is {value!r}"):
        export_model(state, config, TOKENS, family=family)


BART: list[dict[str, Any]] = [
    {"decoder_ffn_dim": 41},
    {"decoder_attention_heads": 2},
    {"normalize_before": True},
    {"static_position_embeddings": True},
    {"is_encoder_decoder": False},
    {"activation_function": "mish"},
    {"architectures": ["BartForCausalLM"]},
]
NOT_COMPUTED: dict[str, list[dict[str, Any]]] = {
    "RoBERTa": [
        {"is_decoder": True},
        {"add_cross_attention": True},
        {"position_embedding_type": "relative_key"},
        {"hidden_act": "mish"},
        {"pad_token_id": None},
    ],
    "GPT-2": [
        {"scale_attn_by_inverse_layer_idx": True},
        {"add_cross_attention": True},
        {"activation_function": "mish"},
        {"architectures": ["GPT2DoubleHeadsModel"]},
    ],
    "LLaMA": [
        {"attention_bias": True},
        {"mlp_bias": True},
        {"hidden_act": "mish"},
    ],
    "BART": BART,
    "mBART": [
        {"normalize_before": False},
        {"add_final_layer_norm": False},
        {"normalize_embedding": False},
    ],
    "T5": [
        {"feed_forward_proj": "gated-mish"},
        {"is_encoder_decoder": False},
        {"architectures": ["T5EncoderModel"]},
    ],
}


@pytest.mark.parametrize(
    ("family", "change"), [(family, change) for family, changes in NOT_COMPUTED.items() for change in changes]
)
def test_computation_that_our_networks_have_not_is_refused_by_the_key(family, change):
    exported = exported_as(family)
    ((key, value),) = change.items()
    named = value[0] if key == "architectures" else f"{key} = {value!r}"
    with pytest.raises(ValueError, match=named):
        import_model(exported.tensors, exported.config | change)


@pytest.mark.parametrize(
    ("family", "change", "named"),
    [
        ("RoBERTa", {"num_attention_heads": 5}, "multiple of num_heads"),
        ("GPT-2", {"n_head": 5}, "multiple of num_heads"),
        ("LLaMA", {"num_key_value_heads": 3}, r"num_key_value_heads \(3\) must divide num_heads \(4\)"),
        ("LLaMA", {"num_key_value_heads": 1}, r"k_proj.weight is \[8, 16\], expected \[4, 16\]"),
        ("LLaMA", {"rope_parameters": {"rope_type": "llama3", "factor": 32.0}}, "rope_type = 'llama3'"),
        (
            "LLaMA",
            {"rope_parameters": None, "rope_scaling": {"type": "linear", "factor": 2.0}},
            "type = 'linear'",
        ),
        ("LLaMA", {"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor = 0.5"),
        ("T5", {"relative_attention_num_buckets": 6}, "relative_buckets must be a multiple of 4"),
    ],
)
def test_sizes_and_rotations_that_do_not_fit_are_refused(family, change, named):
    exported = exported_as(family)
    with pytest.raises(ValueError, match=named):
        import_model(exported.tensors, exported.config | change)


@pytest.mark.parametrize(
    ("head", "keys", "named"),
    [
        ("SequenceClassification", {"classifier_pooling": "mean"}, "classifier_pooling = 'mean'"),
        ("SequenceClassification", {"classifier_activation": "relu"}, "classifier_activation = 'relu'"),
        ("MaskedLM", {"hidden_activation": "mish"}, "hidden_activation = 'mish'.*gelu"),
        ("MaskedLM", {"layer_types": ["sliding_attention"] * 4}, "layer_types"),
        (
            "MaskedLM",
            {"rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 2.0}}},
            "rope_type = 'linear'",
        ),
    ],
)
def test_computation_of_modernbert_that_our_networks_have_not_is_refused(head, keys, named):
    sizes = {"vocab_size": 31, "hidden_size": 8, "num_hidden_layers": 4, "intermediate_size": 8}
    kind = getattr(transformers, f"ModernBertFor{head}")
    theirs = kind(transformers.ModernBertConfig(**sizes, num_attention_heads=2, pad_token_id=0))
    stored = theirs.config.to_dict() | {"architectures": [kind.__name__]}
    with pytest.raises(ValueError, match=named):
        import_model(theirs.state_dict(), stored | keys)


@pytest.mark.parametrize(
    ("family", "old", "new"),
    [
        ("RoBERTa", "roberta.encoder.layer.1.output.dense.bias", "roberta.encoder.layer.7.output.dense.bias"),
        ("GPT-2", "transformer.h.1.ln_1.weight", "transformer.h.7.ln_1.weight"),
        ("BART", "model.decoder.layers.1.fc2.bias", "model.decoder.layers.1.fc3.bias"),
        (
            "T5",
            "decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
            "decoder.block.1.layer.0.SelfAttention.relative_attention_bias.weight",
        ),
    ],
)
def test_tensors_that_do_not_fit_are_refused_by_name(family, old, new):
    exported = exported_as(family)
    tensors = dict(exported.tensors)
    tensors[new] = tensors.pop(old)
    with pytest.raises(ValueError, match="does not fit") as refused:
        import_model(tensors, exported.config)
    assert f"missing {old}" in str(refused.value)
    assert f"unexpected {new}" in str(refused.value)


@pytest.mark.parametrize(
    ("family", "name", "shape", "expected"),
    [
        ("RoBERTa", "lm_head.bias", [5], [61]),
        ("GPT-2", "transformer.h.0.mlp.c_fc.weight", [40, 16], [16, 40]),
        ("BART", "model.encoder.embed_positions.weight", [24, 16], [26, 16]),
    ],
)
def test_tensor_of_another_shape_is_refused_by_name(family, name, shape, expected):
    exported = exported_as(family)
    with pytest.raises(ValueError, match="does not fit") as refused:
        import_model(exported.tensors | {name: torch.zeros(shape)}, exported.config)
    assert f"{name} is {shape}, expected {expected}" in str(refused.value)


zeros, nan, infinite = (partial(torch.full, fill_value=value) for value in (0.0, float("nan"), float("inf")))
NOT_FINITE = r"NaN or infinite values in {}"
ANOTHER = "differs from the other input embedding"


@pytest.mark.parametrize(
    ("family", "name", "value", "message"),
    [
        ("RoBERTa", "lm_head.dense.weight", nan, NOT_FINITE),
        ("RoBERTa", "lm_head.dense.weight", infinite, NOT_FINITE),
        ("RoBERTa", "lm_head.decoder.bias", zeros, "ties {} to lm_head.bias, but their values differ"),
        ("GPT-2", "transformer.wpe.weight", nan, NOT_FINITE),
        ("GPT-2", "lm_head.weight", zeros, "ties {} to transformer.wte.weight, but their values"),
        ("BART", "final_logits_bias", partial(torch.full, fill_value=1.0), "{} is not zero"),
        ("BART", "model.shared.weight", nan, NOT_FINITE),
        ("BART", "lm_head.weight", zeros, "ties {} to model.shared.weight"),
        ("BART", "model.encoder.embed_tokens.weight", zeros, ANOTHER),
        ("T5", "shared.weight", nan, NOT_FINITE),
        ("T5", "decoder.embed_tokens.weight", zeros, ANOTHER),
    ],
)
def test_values_that_our_networks_cannot_have_are_refused(family, name, value, message):
    exported = exported_as(family)
    shapes = {"final_logits_bias": (1, 61), "lm_head.decoder.bias": (61,), "lm_head.dense.weight": (16, 16)}
    shape = shapes.get(name, exported.tensors[name].shape if name in exported.tensors else (61, 16))
    with pytest.raises(ValueError, match=message.format(name)):
        import_model(exported.tensors | {name: value(shape)}, exported.config)


@pytest.mark.parametrize(
    ("family", "name"),
    [("RoBERTa", "head.dense.weight"), ("GPT-2", "decoder.embeddings.positions.weight")],
)
def test_weights_that_are_not_finite_are_not_exported(family, name):
    config = small(family)
    state = random_network(config, HEADS[config.network], 1).state_dict()
    with pytest.raises(ValueError, match=NOT_FINITE.format(name)):
        export_model(state | {name: torch.full_like(state[name], float("inf"))}, config, TOKENS)
