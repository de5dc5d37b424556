"""ModernBERT to and from Hugging Face."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from models.config import TransformerConfig
from models.hf import bert_names as bert
from models.hf.family import (
    ACTIVATION_NAMES,
    Family,
    Head,
    HfConfig,
    Tensors,
    TokenIds,
    differences,
    read_activation,
    read_fields,
    require_keys,
    write_fields,
)
from models.hf.names import Names, import_tensors, module, to_their_names
from models.hf.networks import build_on_meta

ARCHITECTURES: Mapping[str, Head] = {
    "ModernBertModel": "encoder",
    "ModernBertForMaskedLM": "masked_lm",
    "ModernBertForSequenceClassification": "sequence_classification",
    "ModernBertForQuestionAnswering": "question_answering",
}
LABELLING: tuple[Head, ...] = ("sequence_classification", "question_answering")
CONFIG_KEYS: Mapping[str, str] = {
    "vocab_size": "vocab_size",
    "num_layers": "num_hidden_layers",
    "hidden_size": "hidden_size",
    "num_heads": "num_attention_heads",
    "intermediate_size": "intermediate_size",
    "max_positions": "max_position_embeddings",
    "dropout": "embedding_dropout",
    "attention_dropout": "attention_dropout",
    "activation_dropout": "mlp_dropout",
    "norm_eps": "norm_eps",
    "initializer_std": "initializer_range",
    "tie_embeddings": "tie_word_embeddings",
}
DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 50368,
    "num_hidden_layers": 22,
    "hidden_size": 768,
    "num_attention_heads": 12,
    "intermediate_size": 1152,
    "max_position_embeddings": 8192,
    "embedding_dropout": 0.0,
    "attention_dropout": 0.0,
    "mlp_dropout": 0.0,
    "norm_eps": 1e-5,
    "initializer_range": 0.02,
    "tie_word_embeddings": True,
    "hidden_activation": "gelu",
    "classifier_activation": "gelu",
    "classifier_pooling": "cls",
    "local_attention": 128,
    "decoder_bias": True,
}
"""What `transformers` assumes for keys that a config.json leaves out."""
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
ALWAYS = TransformerConfig(
    positions="rotary", norm="pre", first_norm=False, gated=True, classification_head="gelu_norm"
)
CARRIED = {
    *CONFIG_KEYS,
    *("activation", "biases", "rotary_base", "local_rotary_base", "local_window", "global_every"),
    "prediction_activation",
}


def obstacles(config: TransformerConfig, head: Head) -> list[str]:
    """Why a network cannot be written as ModernBERT."""
    return differences(config, head, ALWAYS, CARRIED)


def to_hf(
    state_dict: Mapping[str, Tensor], config: TransformerConfig, head: Head, token_ids: TokenIds
) -> tuple[Tensors, HfConfig]:
    """Translate a network for `transformers`; see `Family`."""
    every = config.global_every if config.local_window is not None else 1
    bases = {
        "full_attention": config.rotary_base,
        "sliding_attention": config.local_rotary_base or config.rotary_base,
    }
    config_dict = {
        **write_fields(config, CONFIG_KEYS),
        **dict.fromkeys(BIAS_KEYS.values(), config.biases),
        "decoder_bias": True,
        "model_type": "modernbert",
        "hidden_activation": ACTIVATION_NAMES[config.activation],
        "classifier_activation": ACTIVATION_NAMES[config.prediction_activation],
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
    if head in LABELLING:
        config_dict["classifier_activation"] = "gelu"
    return to_their_names(_table(config, head), state_dict), config_dict


def from_hf(
    tensors: Mapping[str, Tensor], config_dict: Mapping[str, Any]
) -> tuple[Tensors, TransformerConfig, Head]:
    """Translate a network of `transformers` into ours; see `Family`.

    Our networks have all biases or none: where a file has only some, the others are zero. A separate
    `classifier_dropout` is not kept.
    """
    head = ARCHITECTURES[config_dict["architectures"][0]]
    values = {**DEFAULTS, **config_dict}
    config = _read_config(values, head)
    used = bert.drop_copies(
        bert.modern_names(tensors, "model", head),
        {"decoder.weight": f"{bert.prefix_of('model', head)}embeddings.tok_embeddings.weight"},
        tied=config.tie_embeddings,
        unused=set(),
    )
    num_labels = len(used.get("classifier.weight", ())) or 1
    ours = build_on_meta(config, head, num_labels).state_dict()
    table = _table(config, head)
    return import_tensors(table, ours, {**_zero_biases(table, ours, values), **used}), config, head


def _table(config: TransformerConfig, head: Head) -> list[Names]:
    prefix, bias = bert.prefix_of("model", head), config.biases
    table = [
        *module("encoder.embeddings.tokens", f"{prefix}embeddings.tok_embeddings", bias=False),
        *module("encoder.embeddings.norm", f"{prefix}embeddings.norm", bias=bias),
        *module("encoder.transformer.final_norm", f"{prefix}final_norm", bias=bias),
    ]
    for number in range(config.num_layers):
        our, their = f"encoder.transformer.layers.{number}", f"{prefix}layers.{number}"
        table += [
            *(module(f"{our}.attention_norm", f"{their}.attn_norm", bias=bias) if number else []),
            *module(f"{our}.attention.qkv", f"{their}.attn.Wqkv", bias=bias),
            *module(f"{our}.attention.output", f"{their}.attn.Wo", bias=bias),
            *module(f"{our}.feed_forward_norm", f"{their}.mlp_norm", bias=bias),
            *module(f"{our}.feed_forward.up", f"{their}.mlp.Wi", bias=bias),
            *module(f"{our}.feed_forward.down", f"{their}.mlp.Wo", bias=bias),
        ]
    transform = [
        *module("head.dense", "head.dense", bias=bias),
        *module("head.norm", "head.norm", bias=bias),
    ]
    heads: Mapping[str, list[Names]] = {
        "encoder": [],
        "masked_lm": [*transform, *bert.vocabulary_names(config, "decoder", "decoder.bias")],
        "sequence_classification": [*transform, *module("head.output", "classifier")],
        "question_answering": [
            *module("transform.dense", "head.dense", bias=bias),
            *module("transform.norm", "head.norm", bias=bias),
            *module("output", "classifier"),
        ],
    }
    return [*table, *heads[head]]


def _read_config(values: Mapping[str, Any], head: Head) -> TransformerConfig:
    require_keys(values, {"is_decoder": False, "rope_scaling": None})
    if head in LABELLING:
        require_keys(values, {"classifier_activation": "gelu"})
    if head == "sequence_classification":
        require_keys(values, {"classifier_pooling": "cls"})
    layers = values["num_hidden_layers"]
    kinds = values.get("layer_types") or _layer_types(layers, values.get("global_attn_every_n_layers", 3))
    rotary = {kind: _rotary_base(values, kind) for kind in ROTARY_BASES}
    is_local = "sliding_attention" in kinds
    return TransformerConfig(
        **read_fields(values, CONFIG_KEYS),
        activation=read_activation(values, "hidden_activation"),
        prediction_activation=read_activation(values, "classifier_activation")
        if head == "masked_lm"
        else "gelu",
        biases=any(values.get(key, False) for key in BIAS_KEYS.values()),
        rotary_base=rotary["full_attention"],
        local_rotary_base=rotary["sliding_attention"] if is_local else None,
        local_window=values["local_attention"] if is_local else None,
        global_every=_global_every(kinds, values.get("global_attn_every_n_layers", 3)) if is_local else 3,
        initializer="scaled_residual",
        **{name: getattr(ALWAYS, name) for name in ("positions", "norm", "first_norm", "gated")},
        classification_head=ALWAYS.classification_head,
    )


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


def _zero_biases(table: list[Names], ours: Mapping[str, Tensor], values: Mapping[str, Any]) -> Tensors:
    """Their biases that a file does not have and our network does."""
    absent = {ending for ending, key in BIAS_KEYS.items() if not values.get(key, False)}
    absent |= set() if values["decoder_bias"] else {"decoder.bias"}
    return {
        name: ours[names.ours].new_zeros(ours[names.ours].shape, device="cpu")
        for names in table
        for name in names.theirs
        if name.endswith(tuple(absent))
    }


FAMILY = Family(
    name="ModernBERT",
    architectures=ARCHITECTURES,
    from_hf=from_hf,
    to_hf=to_hf,
    obstacles=obstacles,
)
