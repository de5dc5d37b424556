"""T5 to and from Hugging Face (Raffel et al. 2020): v1.0 and v1.1.

The relative bias of a stack is stored in its first layer. Whether the projection to the vocabulary is tied shows in the
tensors; config.json's `tie_word_embeddings` distinguishes v1.0, which scales the decoder's output, from v1.1, which
does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from models.config import Activation, TransformerConfig
from models.hf.bart import STACKS, heads, with_shared_embedding
from models.hf.config_json import HfConfig, generation_keys
from models.hf.family import Family, TokenIds
from models.hf.heads import Head
from models.hf.names import Names, layers, module, parameter

KEYS: Mapping[str, tuple[str, Any]] = {
    "vocab_size": ("vocab_size", 32128),
    "num_layers": ("num_layers", 6),
    "num_decoder_layers": ("num_decoder_layers", None),
    "hidden_size": ("d_model", 512),
    "num_heads": ("num_heads", 8),
    "attention_head_size": ("d_kv", 64),
    "intermediate_size": ("d_ff", 2048),
    "max_positions": ("n_positions", 512),
    "relative_buckets": ("relative_attention_num_buckets", 32),
    "relative_max_distance": ("relative_attention_max_distance", 128),
    "dropout": ("dropout_rate", 0.1),
    "norm_eps": ("layer_norm_epsilon", 1e-6),
}
DROPOUTS = ("attention_dropout", "activation_dropout", "output_dropout")
"""Fields and keys that `transformers` keeps, but does not read: it drops out everywhere with `dropout_rate`."""
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


def _body(config: TransformerConfig, prefix: str, pad: int) -> list[Names]:
    table = parameter("encoder.embeddings.tokens.weight", f"{prefix}shared.weight")
    for stack, num_layers in zip(STACKS, (config.num_layers, config.decoder_layers), strict=True):
        theirs, modules = f"{prefix}{stack}.block.", _layer(config, stack)
        table += layers(num_layers, f"{stack}.transformer.layers.", theirs, modules, bias=False)
        bias = f"{theirs}0.layer.0.SelfAttention.relative_attention_bias.weight"
        table += parameter(f"{stack}.transformer.relative_bias.weight", bias)
        table += module(f"{stack}.transformer.final_norm", f"{prefix}{stack}.final_layer_norm", bias=False)
    return table


def _layer(config: TransformerConfig, stack: str) -> dict[str, list[str]]:
    """One layer: self-attention, in the decoder cross-attention, feed-forward, numbered in this order."""
    blocks = [("attention", "SelfAttention", {"qkv": "qkv", "output": "o"})]
    if stack == "decoder":
        parts = {"query": "q", "key_value": "kv", "output": "o"}
        blocks += [("cross_attention", "EncDecAttention", parts)]
    up = ("wi_0", "wi_1") if config.gated else ("wi",)
    blocks += [("feed_forward", "DenseReluDense", {"up": up, "down": ("wo",)})]
    table = {}
    for place, (ours, theirs, parts) in enumerate(blocks):
        table[f"{ours}_norm"] = [f"layer.{place}.layer_norm"]
        for part, names in parts.items():
            table[f"{ours}.{part}"] = [f"layer.{place}.{theirs}.{name}" for name in names]
    return table


def _prepare(tensors: dict[str, Tensor], values: Mapping[str, Any], prefix: str) -> dict[str, Tensor]:
    used = with_shared_embedding(tensors, prefix, separate=False)
    shared, projection = f"{prefix}shared.weight", used.get("lm_head.weight")
    if projection is not None and (shared not in used or torch.equal(used[shared], projection)):
        used.setdefault(shared, used.pop("lm_head.weight"))
    return used


def _read(values: Mapping[str, Any], head: Head, tensors: dict[str, Tensor]) -> dict[str, Any]:
    if values["feed_forward_proj"] not in FEED_FORWARDS:
        known = ", ".join(FEED_FORWARDS)
        raise ValueError(
            f"feed_forward_proj = {values['feed_forward_proj']!r} is not supported; it may be {known}"
        )
    activation, gated = FEED_FORWARDS[values["feed_forward_proj"]]
    is_v1_0 = values.get("tie_word_embeddings") is not False
    return {
        **{name: values.get(name, values["dropout_rate"]) for name in DROPOUTS},
        "scale_logits": values.get("scale_decoder_outputs", is_v1_0),
        "activation": activation,
        "gated": gated,
        "tie_embeddings": "lm_head.weight" not in tensors if head == "seq2seq_lm" else is_v1_0,
    }


def _write(config: TransformerConfig, head: Head, token_ids: TokenIds) -> HfConfig:
    feed_forward = (config.activation, config.gated)
    return {
        **{name: getattr(config, name) for name in DROPOUTS},
        "scale_decoder_outputs": config.scale_logits,
        "is_encoder_decoder": True,
        "feed_forward_proj": next(name for name, kind in FEED_FORWARDS.items() if kind == feed_forward),
        "tie_word_embeddings": config.tie_embeddings,
        **token_ids.keys,
        "decoder_start_token_id": token_ids.pad,
    }


FAMILY = Family(
    name="T5",
    model_type="t5",
    # A bare T5Model is read with a language-modelling head, which needs no weights of its own with tied embeddings.
    architectures={
        "T5ForConditionalGeneration": "seq2seq_lm",
        "T5WithLMHeadModel": "seq2seq_lm",
        "T5Model": "seq2seq_lm",
        "T5ForSequenceClassification": "sequence_classification",
        "T5ForQuestionAnswering": "question_answering",
    },
    base="transformer.",
    always=TransformerConfig(
        network="encoder_decoder",
        norm="pre",
        norm_kind="rms",
        biases=False,
        embedding_norm=False,
        positions="relative_bias",
        scale_attention=False,
        initializer="fan_in",
    ),
    keys=KEYS,
    defaults={"feed_forward_proj": "relu"},
    body=_body,
    heads=heads,
    carried={*DROPOUTS, "activation", "gated", "scale_logits", "tie_embeddings"},
    required={"is_encoder_decoder": True},
    read=_read,
    write=_write,
    prepare=_prepare,
    # Published files have this tensor; there is no position bias between decoder and encoder.
    buffers=r"EncDecAttention\.relative_attention_bias\.weight$",
    bare=("seq2seq_lm", "question_answering"),
    # Its decoder starts with padding.
    generation_config=lambda config_dict: generation_keys(config_dict, "decoder_start_token_id"),
)
