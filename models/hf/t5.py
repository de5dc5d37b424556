"""T5 to and from Hugging Face (Raffel et al. 2020): v1.0 and v1.1.

The relative bias of a stack is stored in its first layer. Whether the projection to the vocabulary is tied shows in the
tensors; config.json's `tie_word_embeddings` tells v1.0, which scales the decoder's output, from v1.1, which does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from models.config import Activation, TransformerConfig
from models.hf.family import (
    Family,
    Head,
    HfConfig,
    Tensors,
    TokenIds,
    differences,
    generation_keys,
    read_fields,
    require_keys,
    write_fields,
)
from models.hf.names import Names, import_tensors, module, parameter, to_their_names
from models.hf.networks import build_on_meta
from models.hf.shared_embedding import STACKS, with_shared_embedding

CONFIG_KEYS: Mapping[str, str] = {
    "vocab_size": "vocab_size",
    "num_layers": "num_layers",
    "num_decoder_layers": "num_decoder_layers",
    "hidden_size": "d_model",
    "num_heads": "num_heads",
    "attention_head_size": "d_kv",
    "intermediate_size": "d_ff",
    "max_positions": "n_positions",
    "relative_buckets": "relative_attention_num_buckets",
    "relative_max_distance": "relative_attention_max_distance",
    "dropout": "dropout_rate",
    "attention_dropout": "attention_dropout",
    "activation_dropout": "activation_dropout",
    "output_dropout": "output_dropout",
    "norm_eps": "layer_norm_epsilon",
    "scale_logits": "scale_decoder_outputs",
}
"""Our fields and their keys. `transformers` keeps the keys of positions and of separate dropouts, but reads only
`dropout_rate`."""
DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 32128,
    "d_model": 512,
    "d_kv": 64,
    "d_ff": 2048,
    "num_layers": 6,
    "num_decoder_layers": None,
    "num_heads": 8,
    "n_positions": 512,
    "relative_attention_num_buckets": 32,
    "relative_attention_max_distance": 128,
    "dropout_rate": 0.1,
    "layer_norm_epsilon": 1e-6,
    "feed_forward_proj": "relu",
}
"""What `transformers` assumes for keys that a config.json leaves out."""
COMMON: Mapping[str, Any] = {
    "network": "encoder_decoder",
    "norm": "pre",
    "norm_kind": "rms",
    "biases": False,
    "embedding_norm": False,
    "positions": "relative_bias",
    "scale_attention": False,
    "initializer": "fan_in",
}
"""Fields with one value in all versions."""
CARRIED = {
    *CONFIG_KEYS,
    *("activation", "gated", "tie_embeddings"),
}
FEED_FORWARDS: Mapping[str, tuple[Activation, bool]] = {
    "relu": ("relu", False),
    "gated-gelu": ("gelu_tanh", True),
    "gelu": ("gelu", False),
    "silu": ("silu", False),
    "gated-silu": ("silu", True),
    "gelu_new": ("gelu_tanh", False),
    "gated-relu": ("relu", True),
    "gated-gelu_python": ("gelu", True),
    "gelu_python": ("gelu", False),
    "gelu_pytorch_tanh": ("gelu_tanh", False),
    "gated-gelu_new": ("gelu_tanh", True),
    "gated-gelu_pytorch_tanh": ("gelu_tanh", True),
}
"""Their `feed_forward_proj` and our activation with whether it is gated; of several names the first is written.
`gated-gelu` means the tanh approximation (v1.1), `gelu` the exact one."""


def obstacles(config: TransformerConfig, head: Head) -> list[str]:
    """Why a network cannot be written as T5."""
    return differences(config, head, TransformerConfig(**COMMON), CARRIED)


def to_hf(
    state_dict: Mapping[str, Tensor], config: TransformerConfig, head: Head, token_ids: TokenIds
) -> tuple[Tensors, HfConfig]:
    """Translate a network for `transformers`; see `Family`."""
    feed_forward = (config.activation, config.gated)
    config_dict = {
        **write_fields(config, CONFIG_KEYS),
        "model_type": "t5",
        "is_encoder_decoder": True,
        "num_decoder_layers": config.decoder_layers,
        "d_kv": config.head_size,
        "feed_forward_proj": next(name for name, kind in FEED_FORWARDS.items() if kind == feed_forward),
        "tie_word_embeddings": config.tie_embeddings,
        **token_ids.keys,
        "decoder_start_token_id": token_ids.pad,
    }
    return to_their_names(_table(config), state_dict), config_dict


def from_hf(
    tensors: Mapping[str, Tensor], config_dict: Mapping[str, Any]
) -> tuple[Tensors, TransformerConfig, Head]:
    """Translate a network of `transformers` into ours; see `Family`.

    A bare T5Model is read with a language-modelling head, which needs no weights of its own with tied embeddings.
    """
    head = FAMILY.architectures[config_dict["architectures"][0]]
    used = with_shared_embedding(tensors, "", separate=False)
    # Published files have this tensor; there is no position bias between decoder and encoder.
    used.pop("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight", None)
    shared, projection = used.get("shared.weight"), used.get("lm_head.weight")
    tied = projection is None or shared is None or torch.equal(shared, projection)
    if tied and projection is not None:
        used.setdefault("shared.weight", used.pop("lm_head.weight"))
    config = _read_config({**DEFAULTS, **config_dict}, tied=tied)
    ours = build_on_meta(config, head).state_dict()
    return import_tensors(_table(config), ours, used), config, head


def _table(config: TransformerConfig) -> list[Names]:
    table = parameter("encoder.embeddings.tokens.weight", "shared.weight")
    for stack, num_layers in zip(STACKS, (config.num_layers, config.decoder_layers), strict=True):
        for number in range(num_layers):
            table += _layer(config, stack, number)
        bias = f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        table += parameter(f"{stack}.transformer.relative_bias.weight", bias)
        table += module(f"{stack}.transformer.final_norm", f"{stack}.final_layer_norm", bias=False)
    return table if config.tie_embeddings else table + parameter("head.weight", "lm_head.weight")


def _layer(config: TransformerConfig, stack: str, number: int) -> list[Names]:
    """One layer: self-attention, in the decoder cross-attention, feed-forward, numbered in this order."""
    our, their = f"{stack}.transformer.layers.{number}", f"{stack}.block.{number}.layer"
    blocks = [(f"{our}.attention", "SelfAttention", {"qkv": "qkv", "output": "o"})]
    if stack == "decoder":
        parts = {"query": "q", "key_value": "kv", "output": "o"}
        blocks += [(f"{our}.cross_attention", "EncDecAttention", parts)]
    up = ("wi_0", "wi_1") if config.gated else ("wi",)
    blocks += [(f"{our}.feed_forward", "DenseReluDense", {"up": up, "down": ("wo",)})]
    table = []
    for place, (ours, theirs, parts) in enumerate(blocks):
        table += module(f"{ours}_norm", f"{their}.{place}.layer_norm", bias=False)
        for part, names in parts.items():
            joined = (f"{their}.{place}.{theirs}.{name}" for name in names)
            table += module(f"{ours}.{part}", *joined, bias=False)
    return table


def _read_config(values: Mapping[str, Any], *, tied: bool) -> TransformerConfig:
    require_keys(values, {"is_encoder_decoder": True})
    if values["feed_forward_proj"] not in FEED_FORWARDS:
        known = ", ".join(FEED_FORWARDS)
        raise ValueError(
            f"feed_forward_proj = {values['feed_forward_proj']!r} is not supported; it may be {known}"
        )
    inferred = {
        "attention_dropout": values["dropout_rate"],
        "activation_dropout": values["dropout_rate"],
        "output_dropout": values["dropout_rate"],
        "scale_decoder_outputs": values.get("tie_word_embeddings") is not False,
    }
    fields = read_fields({**inferred, **values}, CONFIG_KEYS)
    if fields["num_decoder_layers"] == fields["num_layers"]:
        fields["num_decoder_layers"] = None
    if fields["attention_head_size"] * fields["num_heads"] == fields["hidden_size"]:
        fields["attention_head_size"] = None
    activation, gated = FEED_FORWARDS[values["feed_forward_proj"]]
    return TransformerConfig(**COMMON, **fields, activation=activation, gated=gated, tie_embeddings=tied)


FAMILY = Family(
    name="T5",
    architectures={
        "T5ForConditionalGeneration": "seq2seq_lm",
        "T5WithLMHeadModel": "seq2seq_lm",
        "T5Model": "seq2seq_lm",
    },
    from_hf=from_hf,
    to_hf=to_hf,
    obstacles=obstacles,
    # Its decoder starts with padding.
    generation_config=lambda config_dict: generation_keys(config_dict, "decoder_start_token_id"),
)
