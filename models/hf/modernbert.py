"""ModernBERT to and from Hugging Face."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from models.config import TransformerConfig
from models.hf.config_json import ACTIVATION_NAMES, read_activation, require_keys
from models.hf.family import Family, TokenIds
from models.hf.heads import FINE_TUNED, Head, classes
from models.hf.names import Names, layers, module, parameter

KEYS: Mapping[str, tuple[str, Any]] = {
    "vocab_size": ("vocab_size", 50368),
    "num_layers": ("num_hidden_layers", 22),
    "hidden_size": ("hidden_size", 768),
    "num_heads": ("num_attention_heads", 12),
    "intermediate_size": ("intermediate_size", 1152),
    "max_positions": ("max_position_embeddings", 8192),
    "dropout": ("embedding_dropout", 0.0),
    "attention_dropout": ("attention_dropout", 0.0),
    "activation_dropout": ("mlp_dropout", 0.0),
    "norm_eps": ("norm_eps", 1e-5),
    "initializer_std": ("initializer_range", 0.02),
    "tie_embeddings": ("tie_word_embeddings", True),
}
DEFAULTS: Mapping[str, Any] = {
    "hidden_activation": "gelu",
    "classifier_activation": "gelu",
    "classifier_pooling": "cls",
    "local_attention": 128,
    "decoder_bias": True,
}
"""Values that `transformers` assumes for keys that a config.json leaves out."""
BIAS_KEYS: Mapping[str, str] = {
    "attn.Wqkv.bias": "attention_bias",
    "attn.Wo.bias": "attention_bias",
    "mlp.Wi.bias": "mlp_bias",
    "mlp.Wo.bias": "mlp_bias",
    "norm.bias": "norm_bias",
    "head.dense.bias": "classifier_bias",
}
"""Endings of biases, and the keys that say whether there are any; all are absent by default."""
ROTARY_BASES: Mapping[str, tuple[str, float]] = {
    "full_attention": ("global_rope_theta", 160000.0),
    "sliding_attention": ("local_rope_theta", 10000.0),
}
"""Kinds of layers with the key of their rotary base in older files, and its default."""


LAYER: Mapping[str, tuple[str, ...]] = {
    "attention_norm": ("attn_norm",),
    "attention.qkv": ("attn.Wqkv",),
    "attention.output": ("attn.Wo",),
    "feed_forward_norm": ("mlp_norm",),
    "feed_forward.up": ("mlp.Wi",),
    "feed_forward.down": ("mlp.Wo",),
}


def _body(config: TransformerConfig, prefix: str, pad: int) -> list[Names]:
    bias, ours = config.biases, "encoder.transformer.layers."
    own = layers(config.num_layers, ours, f"{prefix}layers.", LAYER, bias=bias)
    return [
        *module("encoder.embeddings.tokens", f"{prefix}embeddings.tok_embeddings", bias=False),
        *module("encoder.embeddings.norm", f"{prefix}embeddings.norm", bias=bias),
        *module("encoder.transformer.final_norm", f"{prefix}final_norm", bias=bias),
        # The first layer has no norm.
        *(names for names in own if not names.ours.startswith(f"{ours}0.attention_norm.")),
    ]


def _heads(config: TransformerConfig, prefix: str) -> Mapping[Head, list[Names]]:
    def transform(ours: str) -> list[Names]:
        return [
            *module(f"{ours}.dense", "head.dense", bias=config.biases),
            *module(f"{ours}.norm", "head.norm", bias=config.biases),
        ]

    projection = parameter("head.decoder.bias", "decoder.bias")
    if not config.tie_embeddings:
        projection += module("head.decoder", "decoder")
    pooled = [*transform("head"), *module("head.output", "classifier")]
    return {
        "encoder": [],
        "masked_lm": [*transform("head"), *projection],
        "sequence_classification": pooled,
        "multiple_choice": pooled,
        "token_classification": [*transform("transform"), *module("scores", "classifier")],
        "question_answering": [*transform("transform"), *module("output", "classifier")],
    }


def _write(config: TransformerConfig, head: Head, token_ids: TokenIds) -> dict[str, Any]:
    every = config.global_every if config.local_window is not None else 1
    bases = {
        "full_attention": config.rotary_base,
        "sliding_attention": config.local_rotary_base or config.rotary_base,
    }
    activation = "gelu" if head in FINE_TUNED else ACTIVATION_NAMES[config.prediction_activation]
    return {
        **dict.fromkeys(BIAS_KEYS.values(), config.biases),
        "decoder_bias": True,
        "classifier_activation": activation,
        "classifier_dropout": config.dropout,
        "classifier_pooling": "cls",
        "local_attention": config.local_window or DEFAULTS["local_attention"],
        "layer_types": _layer_types(config.num_layers, every),
        "global_attn_every_n_layers": every,
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": base} for kind, base in bases.items()
        },
        **{key: bases[kind] for kind, (key, _) in ROTARY_BASES.items()},
        "pad_token_id": token_ids.pad,
        **dict.fromkeys(("bos_token_id", "cls_token_id"), token_ids.bos),
        **dict.fromkeys(("eos_token_id", "sep_token_id"), token_ids.eos),
    }


def _read(values: Mapping[str, Any], head: Head, tensors: dict[str, Tensor]) -> dict[str, Any]:
    if head in FINE_TUNED:
        require_keys(values, {"classifier_activation": "gelu"})
    if head in ("sequence_classification", "multiple_choice"):
        require_keys(values, {"classifier_pooling": "cls"})
    layers, every = values["num_hidden_layers"], values.get("global_attn_every_n_layers", 3)
    kinds = values.get("layer_types") or _layer_types(layers, every)
    rotary = {kind: _rotary_base(values, kind) for kind in ROTARY_BASES}
    is_local = "sliding_attention" in kinds
    fields = {
        "biases": _has_biases(values),
        "rotary_base": rotary["full_attention"],
        "local_rotary_base": rotary["sliding_attention"] if is_local else None,
        "local_window": values["local_attention"] if is_local else None,
        "global_every": _global_every(kinds, every) if is_local else 3,
    }
    if head == "masked_lm":
        fields["prediction_activation"] = read_activation(values, "classifier_activation")
    return fields


def _layer_types(num_layers: int, global_every: int) -> list[str]:
    return [
        "sliding_attention" if number % global_every else "full_attention" for number in range(num_layers)
    ]


def _global_every(kinds: list[str], stated: int) -> int:
    """Every how many layers attention is global.

    Raises:
        ValueError: the global layers do not come at equal distances, from the first on.
    """
    for every in (stated, *range(2, len(kinds) + 1)):
        if kinds == _layer_types(len(kinds), every):
            return every
    raise ValueError(
        f"layer_types = {kinds} is not supported; full_attention must come in the first layer and then in every n-th"
    )


def _rotary_base(values: Mapping[str, Any], kind: str) -> float:
    key, default = ROTARY_BASES[kind]
    rotary = (values.get("rope_parameters") or {}).get(kind) or {}
    require_keys(rotary, {"rope_type": "default"})
    return float(rotary.get("rope_theta", values.get(key, default)))


def _has_biases(values: Mapping[str, Any]) -> bool:
    return any(values.get(key, False) for key in BIAS_KEYS.values())


def _with_all_biases(tensors: dict[str, Tensor], values: Mapping[str, Any], prefix: str) -> dict[str, Tensor]:
    """Our networks have all biases or none: where a file has only some, the others are zero."""
    absent = {
        ending for ending, key in BIAS_KEYS.items() if _has_biases(values) and not values.get(key, False)
    }
    weights = tuple(f"{ending.removesuffix('bias')}weight" for ending in absent)
    zeros = {
        f"{name.removesuffix('weight')}bias": tensor.new_zeros(len(tensor))
        for name, tensor in tensors.items()
        if weights and name.endswith(weights)
    }
    if not values["decoder_bias"]:
        zeros["decoder.bias"] = torch.zeros(values["vocab_size"])
    return {**zeros, **tensors}


FAMILY = Family(
    name="ModernBERT",
    model_type="modernbert",
    architectures=classes("ModernBert", "encoder", "masked_lm", *FINE_TUNED),
    base="model.",
    always=TransformerConfig(
        positions="rotary",
        norm="pre",
        first_norm=False,
        gated=True,
        initializer="scaled_residual",
        classification_head="gelu_norm",
    ),
    keys=KEYS,
    defaults=DEFAULTS,
    body=_body,
    heads=_heads,
    activation_key="hidden_activation",
    carried={
        *("biases", "rotary_base", "local_rotary_base", "local_window", "global_every"),
        "prediction_activation",
    },
    required={"is_decoder": False, "rope_scaling": None},
    read=_read,
    write=_write,
    prepare=_with_all_biases,
    copies={"decoder.weight": "{}embeddings.tok_embeddings.weight"},
)
