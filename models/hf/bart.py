"""BART (Lewis et al. 2020) and mBART (Liu et al. 2020) to and from Hugging Face.

Hugging Face counts positions from 2, with two unused rows before: ids of special tokens in BART's first implementation.
mBART is BART with pre-norm and a last norm on both stacks, and no token starts every decoder.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from models.config import Norm, TransformerConfig
from models.hf.bert import pooled_head
from models.hf.config_json import HfConfig, generation_keys, require_keys
from models.hf.family import Family, TokenIds
from models.hf.heads import Head
from models.hf.names import Names, layers, module, parameter, vocabulary_names

STACKS = ("encoder", "decoder")


def heads(config: TransformerConfig, prefix: str) -> Mapping[Head, list[Names]]:
    """Tensors of every head."""
    return {
        "seq2seq_lm": vocabulary_names(config),
        "sequence_classification": pooled_head("classification_head.dense", "classification_head.out_proj"),
        "question_answering": module("output", "qa_outputs"),
    }


def with_shared_embedding(tensors: Mapping[str, Tensor], base: str, *, separate: bool) -> dict[str, Tensor]:
    """Leave one name of the embedding that both stacks read: `shared.weight`.

    Args:
        base: what tensor names begin with.
        separate: whether each stack reads its own copy, and `shared.weight` is read by none where there are copies.

    Raises:
        ValueError: the copies differ.
    """
    kept = dict(tensors)
    shared = f"{base}shared.weight"
    copies = {
        name: kept.pop(name) for stack in STACKS if (name := f"{base}{stack}.embed_tokens.weight") in kept
    }
    if separate and len(copies) == len(STACKS):
        kept.pop(shared, None)
    for name, copy in copies.items():
        if not torch.equal(kept.setdefault(shared, copy), copy):
            raise ValueError(
                f"{name} differs from the other input embedding, but encoder and decoder share one in these networks; "
                "a network that was trained with two cannot be read"
            )
    return kept


UNUSED_POSITIONS = 2
"""Rows of their position embeddings before the first position."""
LOGITS_BIAS = "final_logits_bias"
KEYS: Mapping[str, tuple[str, Any]] = {
    "vocab_size": ("vocab_size", 50265),
    "num_layers": ("encoder_layers", 12),
    "num_decoder_layers": ("decoder_layers", 12),
    "hidden_size": ("d_model", 1024),
    "num_heads": ("encoder_attention_heads", 16),
    "intermediate_size": ("encoder_ffn_dim", 4096),
    "max_positions": ("max_position_embeddings", 1024),
    "dropout": ("dropout", 0.1),
    "attention_dropout": ("attention_dropout", 0.0),
    "activation_dropout": ("activation_dropout", 0.0),
    "scale_embeddings": ("scale_embedding", False),
    "initializer_std": ("init_std", 0.02),
    "tie_embeddings": ("tie_word_embeddings", True),
}
DEFAULTS: Mapping[str, Any] = {
    "decoder_attention_heads": 16,
    "decoder_ffn_dim": 4096,
    "activation_function": "gelu",
}


LAYER: Mapping[str, tuple[str, ...]] = {
    "attention.output": ("self_attn.out_proj",),
    "attention.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "attention_norm": ("self_attn_layer_norm",),
    "feed_forward.up": ("fc1",),
    "feed_forward.down": ("fc2",),
    "feed_forward_norm": ("final_layer_norm",),
}
CROSS_ATTENTION: Mapping[str, tuple[str, ...]] = {
    "cross_attention.output": ("encoder_attn.out_proj",),
    "cross_attention.query": ("encoder_attn.q_proj",),
    "cross_attention.key_value": ("encoder_attn.k_proj", "encoder_attn.v_proj"),
    "cross_attention_norm": ("encoder_attn_layer_norm",),
}


def _body(config: TransformerConfig, prefix: str, pad: int) -> list[Names]:
    table = parameter("encoder.embeddings.tokens.weight", f"{prefix}shared.weight")
    for stack, num_layers in zip(STACKS, (config.num_layers, config.decoder_layers), strict=True):
        positions = f"{stack}.embeddings.positions.weight", f"{prefix}{stack}.embed_positions.weight"
        table += parameter(*positions, skipped=UNUSED_POSITIONS)
        table += module(f"{stack}.embeddings.norm", f"{prefix}{stack}.layernorm_embedding")
        modules = LAYER if stack == "encoder" else {**LAYER, **CROSS_ATTENTION}
        table += layers(num_layers, f"{stack}.transformer.layers.", f"{prefix}{stack}.layers.", modules)
        if config.norm == "pre":
            table += module(f"{stack}.transformer.final_norm", f"{prefix}{stack}.layer_norm")
    return table


def _read(norm: Norm, values: Mapping[str, Any], head: Head, tensors: dict[str, Tensor]) -> dict[str, Any]:
    pre_norm = norm == "pre"
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
    return {}


def _write(norm: Norm, config: TransformerConfig, head: Head, token_ids: TokenIds) -> HfConfig:
    return {
        "is_encoder_decoder": True,
        "decoder_attention_heads": config.num_heads,
        "decoder_ffn_dim": config.intermediate_size,
        **token_ids.keys,
        "decoder_start_token_id": token_ids.eos if norm == "post" else None,
        "forced_eos_token_id": token_ids.eos,
    }


def _prepare(tensors: dict[str, Tensor], values: Mapping[str, Any], prefix: str) -> dict[str, Tensor]:
    used = with_shared_embedding(tensors, prefix, separate=not values["tie_word_embeddings"])
    bias = used.pop(LOGITS_BIAS, None)
    if bias is not None and not bias.is_meta and bias.any():
        raise ValueError(f"{LOGITS_BIAS} is not zero, and these networks have no such bias")
    return used


def _add(tensors: dict[str, Tensor], config: TransformerConfig, head: Head, prefix: str) -> dict[str, Tensor]:
    """A bias of zeros; and untied from the projection, their three input embeddings are untied from each other."""
    shared = tensors[f"{prefix}shared.weight"]
    copies = {f"{prefix}{stack}.embed_tokens.weight": shared.clone() for stack in STACKS}
    bias = {LOGITS_BIAS: shared.new_zeros(1, len(shared))} if head == "seq2seq_lm" else {}
    return bias if config.tie_embeddings else bias | copies


def _generation_config(norm: Norm, config_dict: HfConfig) -> HfConfig:
    """The tokens that begin and end a text of `generate`.

    BART's decoder starts with `</s>`, and its first token is `<s>`; mBART's starts with the tag of the language to
    write, which the caller of `generate` gives.
    """
    values = generation_keys(config_dict, "decoder_start_token_id", "forced_eos_token_id")
    return values | ({"forced_bos_token_id": values["bos_token_id"]} if norm == "post" else {})


def _family(norm: Norm, **others: Any) -> Family:
    """BART is post-norm, mBART pre-norm. LayerDrop is not kept."""
    return Family(
        base="model.",
        always=TransformerConfig(network="encoder_decoder", norm=norm),
        keys=KEYS,
        defaults=DEFAULTS,
        body=_body,
        heads=heads,
        activation_key="activation_function",
        read=partial(_read, norm),
        write=partial(_write, norm),
        prepare=_prepare,
        add=_add,
        copies={"lm_head.weight": "{}shared.weight"},
        # Without meaning.
        buffers=r"(^|\.)(encoder|decoder)\.version$",
        bare=(),
        generation_config=partial(_generation_config, norm),
        **others,
    )


FAMILY = _family(
    "post",
    name="BART",
    model_type="bart",
    # A bare model is read with a language-modelling head, which needs no weights of its own with tied embeddings.
    architectures={
        "BartForConditionalGeneration": "seq2seq_lm",
        "BartModel": "seq2seq_lm",
        "BartForSequenceClassification": "sequence_classification",
        "BartForQuestionAnswering": "question_answering",
    },
)
MBART_FAMILY = _family(
    "pre",
    name="mBART",
    model_type="mbart",
    architectures={
        "MBartForConditionalGeneration": "seq2seq_lm",
        "MBartModel": "seq2seq_lm",
        "MBartForQuestionAnswering": "question_answering",
        # `transformers` classifies by `</s>`, which comes before the tag of the language; our networks take the last
        # token, so sequence classification is not translated.
    },
)
