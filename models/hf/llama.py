"""LLaMA to and from Hugging Face (Touvron et al. 2023; Dubey et al. 2024), without scaled rotary positions.

Files whose rotary frequencies are scaled for long contexts (LLaMA 3.1 and later) are refused.
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

BASE = "model."
"""Beginning of tensor names; bare models have none."""
CONFIG_KEYS: Mapping[str, str] = {
    "vocab_size": "vocab_size",
    "num_layers": "num_hidden_layers",
    "hidden_size": "hidden_size",
    "num_heads": "num_attention_heads",
    "intermediate_size": "intermediate_size",
    "max_positions": "max_position_embeddings",
    "attention_dropout": "attention_dropout",
    "norm_eps": "rms_norm_eps",
    "initializer_std": "initializer_range",
    "tie_embeddings": "tie_word_embeddings",
}
"""Our fields and their keys."""
DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 32000,
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "intermediate_size": 11008,
    "max_position_embeddings": 2048,
    "attention_dropout": 0.0,
    "rms_norm_eps": 1e-6,
    "initializer_range": 0.02,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "rope_theta": 10000.0,
}
"""What `transformers` assumes for keys that a config.json leaves out."""
REQUIRED: Mapping[str, Any] = {"attention_bias": False, "mlp_bias": False}
"""Keys that would change the computation."""
ALWAYS = TransformerConfig(
    network="decoder",
    norm="pre",
    norm_kind="rms",
    biases=False,
    embedding_norm=False,
    positions="rotary",
    gated=True,
)
CARRIED = {*CONFIG_KEYS, *("activation", "num_key_value_heads", "attention_head_size", "rotary_base")}


def obstacles(config: TransformerConfig, head: Head) -> list[str]:
    """Why a network cannot be written as LLaMA."""
    return differences(config, head, ALWAYS, CARRIED)


def to_hf(
    state_dict: Mapping[str, Tensor], config: TransformerConfig, head: Head, token_ids: TokenIds
) -> tuple[Tensors, HfConfig]:
    """Translate a network for `transformers`; see `Family`."""
    config_dict = {
        **write_fields(config, CONFIG_KEYS),
        **REQUIRED,
        "model_type": "llama",
        "num_key_value_heads": config.key_value_heads,
        "head_dim": config.head_size,
        "hidden_act": ACTIVATION_NAMES[config.activation],
        "rope_theta": config.rotary_base,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rotary_base},
        **token_ids.keys,
    }
    return to_their_names(_table(config, head), state_dict), config_dict


def from_hf(
    tensors: Mapping[str, Tensor], config_dict: Mapping[str, Any]
) -> tuple[Tensors, TransformerConfig, Head]:
    """Translate a network of `transformers` into ours; see `Family`.

    A bare LlamaModel is read as a language model: with tied embeddings, the head has no weights of its own.
    """
    head = FAMILY.architectures[config_dict["architectures"][0]]
    config = _read_config({**DEFAULTS, **config_dict})
    copies = {"lm_head.weight": f"{BASE}embed_tokens.weight"}
    # Old files store the frequencies of rotary positions.
    unused = {f"{BASE}layers.{number}.self_attn.rotary_emb.inv_freq" for number in range(config.num_layers)}
    used = drop_copies(
        with_prefix(tensors, BASE, "lm_head.", "score."), copies, tied=config.tie_embeddings, unused=unused
    )
    ours = build_on_meta(config, head, len(used.get("score.weight", ())) or 1).state_dict()
    return import_tensors(_table(config, head), ours, used), config, head


def _table(config: TransformerConfig, head: Head) -> list[Names]:
    sizes = (config.attention_size, config.key_value_size, config.key_value_size)
    table = [
        *parameter("decoder.embeddings.tokens.weight", f"{BASE}embed_tokens.weight"),
        *module("decoder.transformer.final_norm", f"{BASE}norm", bias=False),
    ]
    for number in range(config.num_layers):
        our, their = f"decoder.transformer.layers.{number}", f"{BASE}layers.{number}"
        projections = (f"{their}.self_attn.{initial}_proj" for initial in "qkv")
        table += [
            *module(f"{our}.attention_norm", f"{their}.input_layernorm", bias=False),
            *module(f"{our}.attention.qkv", *projections, bias=False, sizes=sizes),
            *module(f"{our}.attention.output", f"{their}.self_attn.o_proj", bias=False),
            *module(f"{our}.feed_forward_norm", f"{their}.post_attention_layernorm", bias=False),
            *module(f"{our}.feed_forward.up", f"{their}.mlp.gate_proj", f"{their}.mlp.up_proj", bias=False),
            *module(f"{our}.feed_forward.down", f"{their}.mlp.down_proj", bias=False),
        ]
    if head == "sequence_classification":
        return table + module("output", "score", bias=False)
    return table if config.tie_embeddings else table + parameter("head.weight", "lm_head.weight")


def _read_config(values: Mapping[str, Any]) -> TransformerConfig:
    require_keys(values, REQUIRED)
    # Both names: `rope_scaling` is older, and `type` in it is older still.
    rotary = values.get("rope_parameters") or values.get("rope_scaling") or {}
    require_keys(rotary, {"rope_type": "default", "type": "default", "partial_rotary_factor": 1.0})
    fields = read_fields(values, CONFIG_KEYS)
    heads, key_value_heads = fields["num_heads"], values.get("num_key_value_heads")
    head_size = values.get("head_dim")
    return TransformerConfig(
        network="decoder",
        norm="pre",
        norm_kind="rms",
        biases=False,
        embedding_norm=False,
        positions="rotary",
        gated=True,
        dropout=0.0,
        **fields,
        num_key_value_heads=None if key_value_heads == heads else key_value_heads,
        attention_head_size=None
        if head_size is None or head_size * heads == fields["hidden_size"]
        else head_size,
        activation=read_activation(values, "hidden_act"),
        rotary_base=float(rotary.get("rope_theta", values["rope_theta"])),
    )


FAMILY = Family(
    name="LLaMA",
    architectures={
        "LlamaForCausalLM": "causal_lm",
        "LlamaModel": "causal_lm",
        "LlamaForSequenceClassification": "sequence_classification",
    },
    from_hf=from_hf,
    to_hf=to_hf,
    obstacles=obstacles,
    generation_config=generation_keys,
)
