"""GPT-2 to and from Hugging Face (Radford et al. 2019).

Its linear layers are `Conv1D`s, which keep weights as [columns, rows].
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from models.config import TransformerConfig
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
from models.hf.names import Names, import_tensors, module, parameter, to_their_names, with_prefix
from models.hf.networks import build_on_meta

BASE = "transformer."
"""Beginning of tensor names; bare models and the published files have none."""
CONFIG_KEYS: Mapping[str, str] = {
    "vocab_size": "vocab_size",
    "num_layers": "n_layer",
    "hidden_size": "n_embd",
    "num_heads": "n_head",
    "max_positions": "n_positions",
    "dropout": "resid_pdrop",
    "attention_dropout": "attn_pdrop",
    "activation_dropout": "activation_dropout",
    "scale_attention": "scale_attn_weights",
    "norm_eps": "layer_norm_epsilon",
    "initializer_std": "initializer_range",
    "tie_embeddings": "tie_word_embeddings",
}
"""Our fields and their keys. `transformers` keeps `activation_dropout`, but does not read it."""
DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 50257,
    "n_layer": 12,
    "n_embd": 768,
    "n_head": 12,
    "n_inner": None,
    "n_positions": 1024,
    "resid_pdrop": 0.1,
    "attn_pdrop": 0.1,
    "activation_dropout": 0.0,
    "activation_function": "gelu_new",
    "scale_attn_weights": True,
    "layer_norm_epsilon": 1e-5,
    "initializer_range": 0.02,
    "tie_word_embeddings": True,
}
"""What `transformers` assumes for keys that a config.json leaves out."""
REQUIRED: Mapping[str, Any] = {"scale_attn_by_inverse_layer_idx": False, "add_cross_attention": False}
"""Keys that would change the computation."""
ALWAYS = TransformerConfig(network="decoder", norm="pre", embedding_norm=False, initializer="scaled_residual")
CARRIED = {*CONFIG_KEYS, "activation"}


def obstacles(config: TransformerConfig, head: Head) -> list[str]:
    """Why a network cannot be written as GPT-2."""
    return differences(config, head, ALWAYS, CARRIED)


def to_hf(
    state_dict: Mapping[str, Tensor], config: TransformerConfig, head: Head, token_ids: TokenIds
) -> tuple[Tensors, HfConfig]:
    """Translate a network for `transformers`; see `Family`."""
    config_dict = {
        **write_fields(config, CONFIG_KEYS),
        "model_type": "gpt2",
        "n_inner": config.intermediate_size,
        "activation_function": ACTIVATION_NAMES[config.activation],
        "embd_pdrop": config.dropout,
        **token_ids.keys,
    }
    return to_their_names(_table(config, head), state_dict), config_dict


def from_hf(
    tensors: Mapping[str, Tensor], config_dict: Mapping[str, Any]
) -> tuple[Tensors, TransformerConfig, Head]:
    """Translate a network of `transformers` into ours; see `Family`.

    A bare GPT2Model is read as a language model: with tied embeddings, the head has no weights of its own. A separate
    dropout of embeddings is not kept: they drop out like the residual stream.
    """
    head = FAMILY.architectures[config_dict["architectures"][0]]
    config = _read_config({**DEFAULTS, **config_dict})
    copies = {"lm_head.weight": f"{BASE}wte.weight"}
    used = drop_copies(
        with_prefix(tensors, BASE, "lm_head.", "score."),
        copies,
        tied=config.tie_embeddings,
        unused=_masks(config),
    )
    ours = build_on_meta(config, head, len(used.get("score.weight", ())) or 1).state_dict()
    return import_tensors(_table(config, head), ours, used), config, head


def _table(config: TransformerConfig, head: Head) -> list[Names]:
    table = [
        *parameter("decoder.embeddings.tokens.weight", f"{BASE}wte.weight"),
        *parameter("decoder.embeddings.positions.weight", f"{BASE}wpe.weight"),
        *module("decoder.transformer.final_norm", f"{BASE}ln_f"),
    ]
    for number in range(config.num_layers):
        our, their = f"decoder.transformer.layers.{number}", f"{BASE}h.{number}"
        table += [
            *module(f"{our}.attention_norm", f"{their}.ln_1"),
            *module(f"{our}.attention.qkv", f"{their}.attn.c_attn", transposed=True),
            *module(f"{our}.attention.output", f"{their}.attn.c_proj", transposed=True),
            *module(f"{our}.feed_forward_norm", f"{their}.ln_2"),
            *module(f"{our}.feed_forward.up", f"{their}.mlp.c_fc", transposed=True),
            *module(f"{our}.feed_forward.down", f"{their}.mlp.c_proj", transposed=True),
        ]
    if head == "sequence_classification":
        return table + module("output", "score", bias=False)
    return table if config.tie_embeddings else table + parameter("head.weight", "lm_head.weight")


def _read_config(values: Mapping[str, Any]) -> TransformerConfig:
    require_keys(values, REQUIRED)
    return TransformerConfig(
        network="decoder",
        norm="pre",
        embedding_norm=False,
        initializer="scaled_residual",
        position_std=0.01,
        **read_fields(values, CONFIG_KEYS),
        intermediate_size=values["n_inner"] or 4 * values["n_embd"],
        activation=read_activation(values, "activation_function"),
    )


def _masks(config: TransformerConfig) -> set[str]:
    """Causal masks, which old files store."""
    names = ("attn.bias", "attn.masked_bias")
    return {f"{BASE}h.{number}.{name}" for number in range(config.num_layers) for name in names}


FAMILY = Family(
    name="GPT-2",
    architectures={
        "GPT2LMHeadModel": "causal_lm",
        "GPT2Model": "causal_lm",
        "GPT2ForSequenceClassification": "sequence_classification",
    },
    from_hf=from_hf,
    to_hf=to_hf,
    obstacles=obstacles,
    generation_config=generation_keys,
)
