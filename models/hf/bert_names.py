"""Names of layers and keys of config.json that BERT, RoBERTa and ELECTRA share in `transformers`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from models.config import TransformerConfig
from models.hf.family import ACTIVATION_NAMES, Head, HfConfig, read_activation, read_fields, write_fields
from models.hf.names import Names, module, parameter

CONFIG_KEYS: Mapping[str, str] = {
    "vocab_size": "vocab_size",
    "num_layers": "num_hidden_layers",
    "hidden_size": "hidden_size",
    "num_heads": "num_attention_heads",
    "intermediate_size": "intermediate_size",
    "max_positions": "max_position_embeddings",
    "num_segments": "type_vocab_size",
    "dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
    "norm_eps": "layer_norm_eps",
    "initializer_std": "initializer_range",
    "tie_embeddings": "tie_word_embeddings",
}
"""Our fields and their keys."""
CARRIED = {*CONFIG_KEYS, "activation"}
"""Fields of our configuration that a config.json of these families has a place for."""
DEFAULTS: Mapping[str, Any] = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "initializer_range": 0.02,
    "layer_norm_eps": 1e-12,
    "tie_word_embeddings": True,
}
"""What `transformers` assumes for keys that a config.json leaves out."""
REQUIRED: Mapping[str, Any] = {
    "is_decoder": False,
    "add_cross_attention": False,
    "position_embedding_type": "absolute",
}
"""Keys that would change the computation."""


def read_bert_config(values: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of our configuration from a config.json that defaults have been added to."""
    return {**read_fields(values, CONFIG_KEYS), "activation": read_activation(values, "hidden_act")}


def write_bert_config(config: TransformerConfig) -> HfConfig:
    """The opposite of `read_bert_config`."""
    return {**write_fields(config, CONFIG_KEYS), "hidden_act": ACTIVATION_NAMES[config.activation]}


def prefix_of(base: str, head: Head) -> str:
    """The prefix of an encoder's tensor names; a bare model has none."""
    return "" if head == "encoder" else f"{base}."


def modern_names(tensors: Mapping[str, Tensor], base: str, head: Head) -> dict[str, Tensor]:
    """Tensors under the names that classes have now.

    The first published files call the weights and biases of norms gamma and beta, and some bare models are stored with
    the prefix of their base.
    """
    norms = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}
    renamed = {}
    for name, tensor in tensors.items():
        for old, new in norms.items():
            name = name.removesuffix(old) + new if name.endswith(old) else name
        renamed[name.removeprefix(f"{base}.") if head == "encoder" else name] = tensor
    return renamed


def buffer_names(prefix: str) -> set[str]:
    """Ids that old files store and classes compute now."""
    return {f"{prefix}embeddings.position_ids", f"{prefix}embeddings.token_type_ids"}


def unused_names(prefix: str) -> set[str]:
    """Tensors that files have and that networks without a pooler do not compute with."""
    return {f"{prefix}pooler.dense.weight", f"{prefix}pooler.dense.bias"} | buffer_names(prefix)


def embedding_names(config: TransformerConfig, theirs: str, *, positions: bool = True) -> list[Names]:
    """Tensors of the embeddings, whose names begin with `theirs` there; with positions, or without."""
    ours = "encoder.embeddings"
    places = parameter(f"{ours}.positions.weight", f"{theirs}position_embeddings.weight")
    segments = parameter(f"{ours}.segments.weight", f"{theirs}token_type_embeddings.weight")
    return [
        *parameter(f"{ours}.tokens.weight", f"{theirs}word_embeddings.weight"),
        *(places if positions else []),
        *(segments if config.num_segments else []),
        *module(f"{ours}.norm", f"{theirs}LayerNorm"),
    ]


def layer_names(
    config: TransformerConfig,
    theirs: str,
    *,
    attention_norm: str = "attention.output.LayerNorm",
    feed_forward_norm: str = "output.LayerNorm",
) -> list[Names]:
    """Tensors of all layers.

    Args:
        theirs: beginning of their names up to the number of the layer.
        attention_norm: the norm that belongs to attention, within a layer.
        feed_forward_norm: the norm that belongs to the feed-forward block, within a layer.
    """
    table = []
    for number in range(config.num_layers):
        our, their = f"encoder.transformer.layers.{number}", f"{theirs}{number}"
        projections = (f"{their}.attention.self.{name}" for name in ("query", "key", "value"))
        table += [
            *module(f"{our}.attention.qkv", *projections),
            *module(f"{our}.attention.output", f"{their}.attention.output.dense"),
            *module(f"{our}.attention_norm", f"{their}.{attention_norm}"),
            *module(f"{our}.feed_forward.up", f"{their}.intermediate.dense"),
            *module(f"{our}.feed_forward.down", f"{their}.output.dense"),
            *module(f"{our}.feed_forward_norm", f"{their}.{feed_forward_norm}"),
        ]
    return table


def vocabulary_names(config: TransformerConfig, decoder: str, bias: str) -> list[Names]:
    """The projection to the vocabulary.

    Args:
        decoder: their linear layer.
        bias: name of the bias that is used with tied embeddings. Untied, `transformers` adds the bias of `decoder`
            and stores this one without using it.
    """
    tied = parameter("head.decoder.bias", bias)
    return tied if config.tie_embeddings else [*tied, *module("head.decoder", decoder)]


def drop_copies(
    tensors: Mapping[str, Tensor], copies: Mapping[str, str], *, tied: bool, unused: set[str]
) -> dict[str, Tensor]:
    """Leave out second names of one tensor, and tensors that `transformers` stores and does not use.

    Args:
        copies: what tied embeddings make equal: the second name and the first. Untied biases stay two, and where a
            file has only one of them, the other is the same.
        unused: names to leave out.

    Raises:
        ValueError: tied tensors differ.
    """
    kept = {name: tensor for name, tensor in tensors.items() if name not in unused}
    for copy, original in copies.items():
        if tied and copy in kept:
            stored = kept.pop(copy)
            if not torch.equal(kept.setdefault(original, stored), stored):
                raise ValueError(
                    f"config.json ties {copy} to {original}, but their values differ; set tie_word_embeddings to false "
                    "there if they were trained apart"
                )
        elif not tied and copy.endswith("bias"):
            either = kept.get(copy, kept.get(original))
            if either is not None:
                kept |= {copy: either, original: either}
    return kept
