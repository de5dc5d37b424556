"""RoBERTa to and from Hugging Face: `roberta` (post-norm) and `roberta-prelayernorm` (pre-norm).

Hugging Face counts positions from pad_token_id + 1, with unused rows before. And it adds an embedding of the segment
even where there is one segment: a constant that is folded into the positions on import and exported as zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from models.config import Norm, TransformerConfig
from models.hf import bert_names as bert
from models.hf.family import Family, Head, HfConfig, Tensors, TokenIds, differences, require_keys
from models.hf.names import Names, module, to_our_names, to_their_names
from models.hf.networks import build_on_meta
from models.weights import check_tensors


@dataclass(frozen=True)
class Variant:
    """Names that differ between the two architectures."""

    norm: Norm
    model_type: str
    class_prefix: str
    base: str
    """Beginning of tensor names."""
    attention_norm: str
    feed_forward_norm: str


POST = Variant(
    norm="post",
    model_type="roberta",
    class_prefix="Roberta",
    base="roberta",
    attention_norm="attention.output.LayerNorm",
    feed_forward_norm="output.LayerNorm",
)
PRE = Variant(
    norm="pre",
    model_type="roberta-prelayernorm",
    class_prefix="RobertaPreLayerNorm",
    base="roberta_prelayernorm",
    attention_norm="attention.LayerNorm",
    feed_forward_norm="intermediate.LayerNorm",
)
HEADS: Mapping[str, Head] = {
    "Model": "encoder",
    "ForMaskedLM": "masked_lm",
    "ForSequenceClassification": "sequence_classification",
    "ForQuestionAnswering": "question_answering",
}
DEFAULTS: Mapping[str, Any] = {**bert.DEFAULTS, "pad_token_id": 1}


def obstacles(variant: Variant, config: TransformerConfig, head: Head) -> list[str]:
    """Why a network cannot be written as this family."""
    return differences(config, head, TransformerConfig(norm=variant.norm), bert.CARRIED)


def to_hf(
    variant: Variant,
    state_dict: Mapping[str, Tensor],
    config: TransformerConfig,
    head: Head,
    token_ids: TokenIds,
) -> tuple[Tensors, HfConfig]:
    """Translate a network for `transformers`; see `Family`."""
    tensors = to_their_names(_table(variant, config, head), state_dict)
    embeddings = f"{bert.prefix_of(variant.base, head)}embeddings."
    positions = state_dict["encoder.embeddings.positions.weight"]
    unused = positions.new_zeros(token_ids.pad + 1, config.hidden_size)
    tensors[f"{embeddings}position_embeddings.weight"] = torch.cat([unused, positions])
    if not config.num_segments:
        segment = positions.new_zeros(1, config.hidden_size)
        tensors[f"{embeddings}token_type_embeddings.weight"] = segment
    config_dict = {
        **bert.write_bert_config(config),
        "model_type": variant.model_type,
        "max_position_embeddings": config.max_positions + token_ids.pad + 1,
        "type_vocab_size": max(config.num_segments, 1),
        **token_ids.keys,
    }
    return tensors, config_dict


def from_hf(
    variant: Variant, tensors: Mapping[str, Tensor], config_dict: Mapping[str, Any]
) -> tuple[Tensors, TransformerConfig, Head]:
    """Translate a network of `transformers` into ours; see `Family`.

    A pooler, which published files have and their classes do not use, is left out. A separate `classifier_dropout` is
    not kept: the classification head drops out like the rest of the network.
    """
    head = _family(variant).architectures[config_dict["architectures"][0]]
    values = {**DEFAULTS, **config_dict}
    config, pad = _read_config(variant, values)
    prefix = bert.prefix_of(variant.base, head)
    used = bert.drop_copies(
        bert.modern_names(tensors, variant.base, head),
        {
            "lm_head.decoder.weight": f"{prefix}embeddings.word_embeddings.weight",
            "lm_head.decoder.bias": "lm_head.bias",
        },
        tied=config.tie_embeddings,
        unused=bert.unused_names(prefix),
    )
    num_labels = len(used.get("classifier.out_proj.weight", ())) or 1
    ours = build_on_meta(config, head, num_labels).state_dict()
    expected, _ = to_hf(variant, ours, config, head, TokenIds(pad=pad))
    check_tensors(expected, used, "the Hugging Face state dict")

    positions = used[f"{prefix}embeddings.position_embeddings.weight"][pad + 1 :]
    if not config.num_segments:
        positions = positions.float() + used[f"{prefix}embeddings.token_type_embeddings.weight"].float()
    imported = to_our_names(_table(variant, config, head), used)
    return {**imported, "encoder.embeddings.positions.weight": positions}, config, head


def _table(variant: Variant, config: TransformerConfig, head: Head) -> list[Names]:
    """Names of everything but positions, and the segment that only they have."""
    prefix = bert.prefix_of(variant.base, head)
    norms = {"attention_norm": variant.attention_norm, "feed_forward_norm": variant.feed_forward_norm}
    heads = {
        "encoder": [],
        "masked_lm": [
            *module("head.dense", "lm_head.dense"),
            *module("head.norm", "lm_head.layer_norm"),
            *bert.vocabulary_names(config, "lm_head.decoder", "lm_head.bias"),
        ],
        "sequence_classification": [
            *module("head.dense", "classifier.dense"),
            *module("head.output", "classifier.out_proj"),
        ],
        "question_answering": module("output", "qa_outputs"),
    }
    return [
        *bert.embedding_names(config, f"{prefix}embeddings.", positions=False),
        *bert.layer_names(config, f"{prefix}encoder.layer.", **norms),
        *(module("encoder.transformer.final_norm", f"{prefix}LayerNorm") if variant is PRE else []),
        *heads[head],
    ]


def _read_config(variant: Variant, values: Mapping[str, Any]) -> tuple[TransformerConfig, int]:
    """Our configuration, and the padding id."""
    require_keys(values, bert.REQUIRED)
    pad = values["pad_token_id"]
    if not isinstance(pad, int) or pad < 0:
        raise ValueError(f"pad_token_id = {pad!r} in config.json, but positions are counted from it")
    fields = bert.read_bert_config(values)
    fields["max_positions"] -= pad + 1
    if fields["num_segments"] == 1:
        fields["num_segments"] = 0
    return TransformerConfig(**fields, norm=variant.norm), pad


def _family(variant: Variant) -> Family:
    names = {POST: "RoBERTa", PRE: "RoBERTa-PreLayerNorm"}
    return Family(
        name=names[variant],
        architectures={f"{variant.class_prefix}{suffix}": head for suffix, head in HEADS.items()},
        from_hf=partial(from_hf, variant),
        to_hf=partial(to_hf, variant),
        obstacles=partial(obstacles, variant),
    )


FAMILY = _family(POST)
PRE_LAYER_NORM = _family(PRE)
