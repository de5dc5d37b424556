"""LLaMA to and from Hugging Face (Touvron et al. 2023; Dubey et al. 2024), without scaled rotary positions.

Files whose rotary frequencies are scaled for long contexts (LLaMA 3.1 and later) are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from models.config import TransformerConfig
from models.hf.config_json import generation_keys, require_keys
from models.hf.family import Family, TokenIds
from models.hf.heads import Head
from models.hf.names import Names, layers, module, parameter, vocabulary_names

REQUIRED: Mapping[str, Any] = {"attention_bias": False, "mlp_bias": False}


LAYER: Mapping[str, tuple[str, ...]] = {
    "attention_norm": ("input_layernorm",),
    "attention.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "attention.output": ("self_attn.o_proj",),
    "feed_forward_norm": ("post_attention_layernorm",),
    "feed_forward.up": ("mlp.gate_proj", "mlp.up_proj"),
    "feed_forward.down": ("mlp.down_proj",),
}


def _body(config: TransformerConfig, prefix: str, pad: int) -> list[Names]:
    sizes = {"attention.qkv": (config.attention_size, config.key_value_size, config.key_value_size)}
    ours, theirs = "decoder.transformer.layers.", f"{prefix}layers."
    return [
        *parameter("decoder.embeddings.tokens.weight", f"{prefix}embed_tokens.weight"),
        *module("decoder.transformer.final_norm", f"{prefix}norm", bias=False),
        *layers(config.num_layers, ours, theirs, LAYER, sizes=sizes, bias=False),
    ]


def _heads(config: TransformerConfig, prefix: str) -> Mapping[Head, list[Names]]:
    return {
        "causal_lm": vocabulary_names(config),
        "sequence_classification": module("output", "score", bias=False),
        "token_classification": module("scores", "score"),
    }


def _read(values: Mapping[str, Any], head: Head, tensors: dict[str, Tensor]) -> dict[str, Any]:
    # Both names: `rope_scaling` is older, and `type` in it is older still.
    rotary = values.get("rope_parameters") or values.get("rope_scaling") or {}
    require_keys(rotary, {"rope_type": "default", "type": "default", "partial_rotary_factor": 1.0})
    return {"rotary_base": float(rotary.get("rope_theta", values["rope_theta"]))}


def _write(config: TransformerConfig, head: Head, token_ids: TokenIds) -> dict[str, Any]:
    return {
        **REQUIRED,
        "rope_theta": config.rotary_base,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rotary_base},
        **token_ids.keys,
    }


FAMILY = Family(
    name="LLaMA",
    model_type="llama",
    # A bare LlamaModel is read as a language model: with tied embeddings, the head has no weights of its own.
    architectures={
        "LlamaForCausalLM": "causal_lm",
        "LlamaModel": "causal_lm",
        "LlamaForSequenceClassification": "sequence_classification",
        "LlamaForTokenClassification": "token_classification",
    },
    base="model.",
    always=TransformerConfig(
        network="decoder",
        norm="pre",
        norm_kind="rms",
        biases=False,
        embedding_norm=False,
        positions="rotary",
        gated=True,
        dropout=0.0,
    ),
    keys={
        "vocab_size": ("vocab_size", 32000),
        "num_layers": ("num_hidden_layers", 32),
        "hidden_size": ("hidden_size", 4096),
        "num_heads": ("num_attention_heads", 32),
        "num_key_value_heads": ("num_key_value_heads", None),
        "attention_head_size": ("head_dim", None),
        "intermediate_size": ("intermediate_size", 11008),
        "max_positions": ("max_position_embeddings", 2048),
        "attention_dropout": ("attention_dropout", 0.0),
        "norm_eps": ("rms_norm_eps", 1e-6),
        "initializer_std": ("initializer_range", 0.02),
        "tie_embeddings": ("tie_word_embeddings", False),
    },
    defaults={"hidden_act": "silu", "rope_theta": 10000.0},
    body=_body,
    heads=_heads,
    activation_key="hidden_act",
    carried={"rotary_base"},
    required=REQUIRED,
    read=_read,
    write=_write,
    copies={"lm_head.weight": "{}embed_tokens.weight"},
    # Frequencies of rotary positions.
    buffers=r"self_attn\.rotary_emb\.inv_freq$",
    bare=(),
    generation_config=generation_keys,
)
