"""What a family or our networks cannot carry is refused, in both directions, and the message names it."""

from functools import cache, partial
from typing import Any

import pytest
import torch

from models.hf.families import FAMILIES, Exported, export_model, import_model
from models.hf.family import TokenIds
from models.hf.heads import Head, build_on_meta
from models.language_models import MaskedLanguageModel
from tests.models.hf_configs import small
from tests.models.hf_oracle import TOKENS, random_network
from tests.models.materials import small_config

HEADS: dict[str, Head] = {"encoder": "masked_lm", "decoder": "causal_lm", "encoder_decoder": "seq2seq_lm"}


@cache
def exported_as(family: str, head: Head | None = None) -> Exported:
    """A small random network of a family, as it is written."""
    config = small(family)
    head = head or HEADS[config.network]
    return export_model(
        random_network(config, head, 1).state_dict(), config, TOKENS, head=head, family=family
    )


def one_by_one(table: dict[str, list[dict[str, Any]]]) -> list[tuple[str, str, Any]]:
    """(family, key, value) of every entry."""
    return [
        (family, key, value)
        for family, groups in table.items()
        for group in groups
        for key, value in group.items()
    ]


NOT_CARRIED: dict[str, list[dict[str, Any]]] = {
    "BART": [
        {"norm_eps": 1e-12, "positions": "sinusoidal", "embedding_norm": False, "biases": False},
        {"gated": True, "scale_logits": True, "norm_kind": "rms"},
    ],
    "T5": [
        {"norm": "post", "positions": "learned", "embedding_norm": True, "scale_attention": True},
        {"scale_embeddings": True, "norm_kind": "layer", "biases": True},
    ],
    "GPT-2": [
        {"norm": "post", "positions": "rotary", "norm_kind": "rms", "gated": True, "local_window": 4},
        {"attention_head_size": 8, "biases": False, "num_segments": 2, "scale_logits": True},
        {"num_key_value_heads": 2},
    ],
    "DistilBERT": [{"classification_head": "tanh"}],
}


@pytest.mark.parametrize(("family", "field", "value"), one_by_one(NOT_CARRIED))
def test_network_that_a_family_cannot_carry_is_refused_by_the_field(family, field, value):
    config = small(family, **{field: value})
    state = build_on_meta(config, HEADS[config.network]).state_dict()
    with pytest.raises(ValueError, match=f"{family}.*{field}.*{value!r}"):
        export_model(state, config, TOKENS, family=family)


def test_network_that_no_family_computes_is_refused_with_every_reason():
    config = small_config(positions="sinusoidal", gated=True)
    with pytest.raises(ValueError, match="no family") as refused:
        export_model(MaskedLanguageModel(config).state_dict(), config)
    message = str(refused.value)
    assert "RoBERTa: positions is 'sinusoidal', and it always has 'learned'; gated is True" in message
    assert all(family.name in message for family in FAMILIES)


NOT_COMPUTED: dict[str, list[dict[str, Any]]] = {
    "RoBERTa": [
        {"is_decoder": True, "add_cross_attention": True, "position_embedding_type": "relative_key"},
        {"hidden_act": "mish", "pad_token_id": None},
    ],
    "GPT-2": [
        {"scale_attn_by_inverse_layer_idx": True, "add_cross_attention": True},
        {"activation_function": "mish", "architectures": ["GPT2DoubleHeadsModel"]},
    ],
    "LLaMA": [{"attention_bias": True, "mlp_bias": True, "hidden_act": "mish"}],
    "BART": [
        {"decoder_ffn_dim": 41, "decoder_attention_heads": 2, "normalize_before": True},
        {"static_position_embeddings": True, "is_encoder_decoder": False},
        {"activation_function": "mish", "architectures": ["BartForCausalLM"]},
    ],
    "mBART": [{"normalize_before": False, "add_final_layer_norm": False, "normalize_embedding": False}],
    "T5": [
        {"feed_forward_proj": "gated-mish", "is_encoder_decoder": False},
        {"architectures": ["T5EncoderModel"]},
    ],
}
WITHOUT_MEANING = "no meaning"
SUPPORTED = r"supported: BertModel, BertForMaskedLM.*ModernBertForMaskedLM"


@pytest.mark.parametrize(
    ("family", "change", "named"),
    [
        *(
            (family, {key: value}, value[0] if key == "architectures" else f"{key} = {value!r}")
            for family, key, value in one_by_one(NOT_COMPUTED)
        ),
        ("RoBERTa", {"num_attention_heads": 5}, "num_heads"),
        ("GPT-2", {"n_head": 5}, "num_heads"),
        ("LLaMA", {"num_key_value_heads": 3}, r"num_key_value_heads \(3\)"),
        ("LLaMA", {"num_key_value_heads": 1}, r"k_proj.weight is \[8, 16\], expected \[4, 16\]"),
        ("LLaMA", {"rope_parameters": {"rope_type": "llama3", "factor": 32.0}}, "rope_type = 'llama3'"),
        ("LLaMA", {"rope_parameters": None, "rope_scaling": {"type": "linear"}}, "type = 'linear'"),
        ("LLaMA", {"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor = 0.5"),
        ("T5", {"relative_attention_num_buckets": 6}, "relative_buckets"),
        ("ModernBERT", {"hidden_activation": "mish"}, "hidden_activation = 'mish'.*gelu"),
        ("ModernBERT", {"layer_types": ["sliding_attention"] * 2}, "layer_types"),
        (
            "ModernBERT",
            {"rope_parameters": {"full_attention": {"rope_type": "linear"}}},
            "rope_type = 'linear'",
        ),
        ("RoBERTa", {"quantization_config": {"bits": 8}}, "quantization_config"),
        ("RoBERTa", {"hidden_size": "wide"}, WITHOUT_MEANING),
        ("RoBERTa", {"hidden_act": ["gelu"]}, WITHOUT_MEANING),
        ("RoBERTa", {"num_hidden_layers": 10**9}, r"num_hidden_layers = 1000000000 .* \d+ tensors"),
        *(
            ("RoBERTa", {"architectures": each}, SUPPORTED)
            for each in (None, [], ["XLNetLMHeadModel"], ["BertForMaskedLM", "BertModel"], 7, [["BertModel"]])
        ),
    ],
)
def test_config_json_that_our_networks_do_not_compute_is_refused_by_the_key(family, change, named):
    exported = exported_as(family)
    with pytest.raises(ValueError, match=named):
        import_model(exported.tensors, exported.config | change)


@pytest.mark.parametrize(
    ("key", "value"), [("classifier_pooling", "mean"), ("classifier_activation", "relu")]
)
def test_classification_of_modernbert_that_our_networks_have_not_is_refused(key, value):
    exported = exported_as("ModernBERT", "sequence_classification")
    with pytest.raises(ValueError, match=f"{key} = {value!r}"):
        import_model(exported.tensors, exported.config | {key: value})


def test_config_without_a_vocabulary_size_is_refused():
    exported = exported_as("BERT")
    kept = {key: value for key, value in exported.config.items() if key != "vocab_size"}
    with pytest.raises(ValueError, match="vocab_size"):
        import_model(exported.tensors, kept)


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
    with pytest.raises(ValueError, match=old) as refused:
        import_model(tensors, exported.config)
    assert f"missing {old}" in str(refused.value)
    assert f"unexpected {new}" in str(refused.value)


zeros, nan, infinite = (partial(torch.full, fill_value=value) for value in (0.0, float("nan"), float("inf")))
NOT_FINITE = "NaN.*{}"
ANOTHER = "input embedding"


@pytest.mark.parametrize(
    ("family", "name", "tensor", "message"),
    [
        ("RoBERTa", "lm_head.dense.weight", nan((16, 16)), NOT_FINITE),
        ("RoBERTa", "lm_head.dense.weight", infinite((16, 16)), NOT_FINITE),
        ("RoBERTa", "lm_head.dense.weight", torch.zeros(16, 16, dtype=torch.int8), "{}.*int8"),
        ("RoBERTa", "lm_head.bias", torch.zeros(5), r"{} is \[5\], expected \[61\]"),
        ("RoBERTa", "lm_head.decoder.bias", zeros((61,)), "{}.*lm_head.bias"),
        ("GPT-2", "transformer.wpe.weight", nan((24, 16)), NOT_FINITE),
        ("GPT-2", "transformer.h.0.mlp.c_fc.weight", zeros((40, 16)), r"{} is .*, expected \[16, 40\]"),
        ("GPT-2", "lm_head.weight", zeros((61, 16)), "{}.*transformer.wte.weight"),
        ("BART", "final_logits_bias", torch.ones(1, 61), "{}"),
        ("BART", "model.shared.weight", nan((61, 16)), NOT_FINITE),
        ("BART", "lm_head.weight", zeros((61, 16)), "{}.*model.shared.weight"),
        ("BART", "model.encoder.embed_tokens.weight", zeros((61, 16)), ANOTHER),
        ("BART", "model.encoder.embed_positions.weight", zeros((24, 16)), r"{} is .*, expected \[26, 16\]"),
        ("T5", "shared.weight", nan((61, 16)), NOT_FINITE),
        ("T5", "decoder.embed_tokens.weight", zeros((61, 16)), ANOTHER),
    ],
)
def test_tensor_that_our_networks_cannot_have_is_refused_by_name(family, name, tensor, message):
    exported = exported_as(family)
    with pytest.raises(ValueError, match=message.format(name)):
        import_model(exported.tensors | {name: tensor}, exported.config)


def test_weights_that_are_not_finite_and_tokens_outside_the_vocabulary_are_not_exported():
    for family, head, name in (
        ("RoBERTa", "masked_lm", "head.dense.weight"),
        ("GPT-2", "causal_lm", "decoder.embeddings.positions.weight"),
    ):
        state = random_network(small(family), head, 1).state_dict()
        with pytest.raises(ValueError, match=name):
            export_model(state | {name: torch.full_like(state[name], float("inf"))}, small(family), TOKENS)
    with pytest.raises(ValueError, match="id 61"):
        export_model(state, small("GPT-2"), TokenIds(pad=61))
