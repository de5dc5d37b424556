"""BART to and from Hugging Face (Lewis et al. 2020), and the part that mBART shares.

Hugging Face counts positions from 2, with two unused rows before: ids of special tokens in BART's first implementation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from models.config import Norm, TransformerConfig
from models.hf.bert_names import drop_copies
from models.hf.family import (
    ACTIVATION_NAMES,
    Family,
    Head,
    HfConfig,
    Tensors,
    TokenIds,
    differences,
    generation_keys,
    read_activation,
    read_fields,
    require_keys,
    write_fields,
)
from models.hf.names import Names, module, parameter, to_our_names, to_their_names, with_prefix
from models.hf.networks import build_on_meta
from models.hf.shared_embedding import STACKS, with_shared_embedding
from models.weights import check_tensors

BASE = "model."
"""Beginning of tensor names; bare models have none."""
UNUSED_POSITIONS = 2
"""Rows of their position embeddings before the first position."""
LOGITS_BIAS = "final_logits_bias"
CONFIG_KEYS: Mapping[str, str] = {
    "vocab_size": "vocab_size",
    "num_layers": "encoder_layers",
    "num_decoder_layers": "decoder_layers",
    "hidden_size": "d_model",
    "num_heads": "encoder_attention_heads",
    "intermediate_size": "encoder_ffn_dim",
    "max_positions": "max_position_embeddings",
    "dropout": "dropout",
    "attention_dropout": "attention_dropout",
    "activation_dropout": "activation_dropout",
    "scale_embeddings": "scale_embedding",
    "initializer_std": "init_std",
    "tie_embeddings": "tie_word_embeddings",
}
"""Our fields and their keys."""
DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 50265,
    "encoder_layers": 12,
    "decoder_layers": 12,
    "d_model": 1024,
    "encoder_attention_heads": 16,
    "decoder_attention_heads": 16,
    "encoder_ffn_dim": 4096,
    "decoder_ffn_dim": 4096,
    "max_position_embeddings": 1024,
    "activation_function": "gelu",
    "dropout": 0.1,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
    "scale_embedding": False,
    "init_std": 0.02,
    "tie_word_embeddings": True,
}
"""What `transformers` assumes for keys that a config.json leaves out."""
CARRIED = {*CONFIG_KEYS, "activation"}


@dataclass(frozen=True)
class Variant:
    """The differences between BART and mBART."""

    name: str
    norm: Norm
    model_type: str
    class_prefix: str
    starts_with_eos: bool
    """Whether the decoder starts with `</s>` and its first token is `<s>`; mBART's starts with the tag of the
    language to write, which the caller of `generate` gives."""


BART = Variant(name="BART", norm="post", model_type="bart", class_prefix="Bart", starts_with_eos=True)


def obstacles(variant: Variant, config: TransformerConfig, head: Head) -> list[str]:
    """Why a network cannot be written as this family."""
    return differences(config, head, TransformerConfig(network="encoder_decoder", norm=variant.norm), CARRIED)


def to_hf(
    variant: Variant,
    state_dict: Mapping[str, Tensor],
    config: TransformerConfig,
    head: Head,
    token_ids: TokenIds,
) -> tuple[Tensors, HfConfig]:
    """Translate a network for `transformers`; see `Family`."""
    tensors = to_their_names(_table(variant, config), state_dict)
    for stack in STACKS:
        positions = state_dict[f"{stack}.embeddings.positions.weight"]
        unused = positions.new_zeros(UNUSED_POSITIONS, config.hidden_size)
        tensors[f"{BASE}{stack}.embed_positions.weight"] = torch.cat([unused, positions])
        if not config.tie_embeddings:
            # Untied from the projection, their three input embeddings are untied from each other.
            tensors[f"{BASE}{stack}.embed_tokens.weight"] = tensors[f"{BASE}shared.weight"].clone()
    tensors[LOGITS_BIAS] = positions.new_zeros(1, config.require_vocab_size())
    config_dict = {
        **write_fields(config, CONFIG_KEYS),
        "model_type": variant.model_type,
        "is_encoder_decoder": True,
        "activation_function": ACTIVATION_NAMES[config.activation],
        "decoder_layers": config.decoder_layers,
        "decoder_attention_heads": config.num_heads,
        "decoder_ffn_dim": config.intermediate_size,
        **token_ids.keys,
        "decoder_start_token_id": token_ids.eos if variant.starts_with_eos else None,
        "forced_eos_token_id": token_ids.eos,
    }
    return tensors, config_dict


def from_hf(
    variant: Variant, tensors: Mapping[str, Tensor], config_dict: Mapping[str, Any]
) -> tuple[Tensors, TransformerConfig, Head]:
    """Translate a network of `transformers` into ours; see `Family`.

    A bare model is read with a language-modelling head, which needs no weights of its own with tied embeddings.
    LayerDrop is not kept.
    """
    head = family_of(variant).architectures[config_dict["architectures"][0]]
    config = _read_config(variant, {**DEFAULTS, **config_dict})
    used = with_shared_embedding(
        with_prefix(tensors, BASE, "lm_head.", LOGITS_BIAS), BASE, separate=not config.tie_embeddings
    )
    used = drop_copies(
        used, {"lm_head.weight": f"{BASE}shared.weight"}, tied=config.tie_embeddings, unused=UNUSED_NAMES
    )
    if used.pop(LOGITS_BIAS, torch.zeros(1)).any():
        raise ValueError(f"{LOGITS_BIAS} is not zero, and these networks have no such bias")
    expected, _ = to_hf(variant, build_on_meta(config, head).state_dict(), config, head, TokenIds())
    copies = {f"{BASE}{stack}.embed_tokens.weight" for stack in STACKS}
    needed = {name: tensor for name, tensor in expected.items() if name not in {LOGITS_BIAS, *copies}}
    check_tensors(needed, used, "the Hugging Face state dict")
    imported = to_our_names(_table(variant, config), used)
    for stack in STACKS:
        positions = used[f"{BASE}{stack}.embed_positions.weight"][UNUSED_POSITIONS:]
        imported[f"{stack}.embeddings.positions.weight"] = positions
    return imported, config, head


def generation_config(variant: Variant, config_dict: HfConfig) -> HfConfig:
    """The tokens with which `generate` begins and ends a text."""
    values = generation_keys(config_dict, "decoder_start_token_id", "forced_eos_token_id")
    return values | ({"forced_bos_token_id": values["bos_token_id"]} if variant.starts_with_eos else {})


def family_of(variant: Variant) -> Family:
    """The family of a variant."""
    return Family(
        name=variant.name,
        architectures={
            f"{variant.class_prefix}ForConditionalGeneration": "seq2seq_lm",
            f"{variant.class_prefix}Model": "seq2seq_lm",
        },
        from_hf=partial(from_hf, variant),
        to_hf=partial(to_hf, variant),
        obstacles=partial(obstacles, variant),
        generation_config=partial(generation_config, variant),
    )


def _table(variant: Variant, config: TransformerConfig) -> list[Names]:
    """Names of everything but positions."""
    table = parameter("encoder.embeddings.tokens.weight", f"{BASE}shared.weight")
    for stack, num_layers in zip(STACKS, (config.num_layers, config.decoder_layers), strict=True):
        table += module(f"{stack}.embeddings.norm", f"{BASE}{stack}.layernorm_embedding")
        for number in range(num_layers):
            our, their = f"{stack}.transformer.layers.{number}", f"{BASE}{stack}.layers.{number}"
            table += [
                *_attention(f"{our}.attention", f"{their}.self_attn", {"qkv": "qkv"}),
                *module(f"{our}.attention_norm", f"{their}.self_attn_layer_norm"),
                *module(f"{our}.feed_forward.up", f"{their}.fc1"),
                *module(f"{our}.feed_forward.down", f"{their}.fc2"),
                *module(f"{our}.feed_forward_norm", f"{their}.final_layer_norm"),
            ]
            if stack == "decoder":
                parts = {"query": "q", "key_value": "kv"}
                table += _attention(f"{our}.cross_attention", f"{their}.encoder_attn", parts)
                table += module(f"{our}.cross_attention_norm", f"{their}.encoder_attn_layer_norm")
        if variant.norm == "pre":
            table += module(f"{stack}.transformer.final_norm", f"{BASE}{stack}.layer_norm")
    return table if config.tie_embeddings else table + parameter("head.weight", "lm_head.weight")


def _attention(our: str, their: str, projections: Mapping[str, str]) -> list[Names]:
    """One attention; `projections` has, for each of our projections, the initials of theirs that it joins."""
    table = module(f"{our}.output", f"{their}.out_proj")
    for name, initials in projections.items():
        table += module(f"{our}.{name}", *(f"{their}.{initial}_proj" for initial in initials))
    return table


def _read_config(variant: Variant, values: Mapping[str, Any]) -> TransformerConfig:
    pre_norm = variant.norm == "pre"
    required = {
        "is_encoder_decoder": True,
        "normalize_before": pre_norm,
        "add_final_layer_norm": pre_norm,
        "normalize_embedding": True,
        "static_position_embeddings": False,
        "decoder_attention_heads": values["encoder_attention_heads"],
        "decoder_ffn_dim": values["encoder_ffn_dim"],
    }
    require_keys(values, required)
    fields = read_fields(values, CONFIG_KEYS)
    if fields["num_decoder_layers"] == fields["num_layers"]:
        fields["num_decoder_layers"] = None
    activation = read_activation(values, "activation_function")
    return TransformerConfig(network="encoder_decoder", norm=variant.norm, **fields, activation=activation)


UNUSED_NAMES = {f"{BASE}{stack}.version" for stack in STACKS}
"""Tensors of old files without meaning."""


FAMILY = family_of(BART)
