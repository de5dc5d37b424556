"""RoBERTa to and from Hugging Face: `roberta` (post-norm) and `roberta-prelayernorm` (pre-norm).

Hugging Face counts positions from pad_token_id + 1, with unused rows before. And it adds an embedding of the segment
even where there is one segment: a constant that is folded into the positions on import and exported as zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from torch import Tensor

from models.config import TransformerConfig
from models.hf import bert
from models.hf.family import Family, TokenIds
from models.hf.heads import FINE_TUNED, Head, classes
from models.hf.names import Names, layers, module

PRE_NORM_LAYER = {
    **bert.LAYER,
    "attention_norm": ("attention.LayerNorm",),
    "feed_forward_norm": ("intermediate.LayerNorm",),
}
SEGMENTS = "embeddings.token_type_embeddings.weight"


def _body(
    layer: Mapping[str, tuple[str, ...]], config: TransformerConfig, prefix: str, pad: int
) -> list[Names]:
    final_norm = module("encoder.transformer.final_norm", f"{prefix}LayerNorm")
    return [
        *bert.embedding_names(config, prefix, skipped=pad + 1),
        *layers(config.num_layers, bert.LAYERS, f"{prefix}encoder.layer.", layer),
        *(final_norm if config.norm == "pre" else []),
    ]


def _heads(config: TransformerConfig, prefix: str) -> Mapping[Head, list[Names]]:
    return {
        "encoder": [],
        "masked_lm": bert.prediction_names(
            config, "lm_head.dense", "lm_head.layer_norm", "lm_head.decoder", "lm_head.bias"
        ),
        **bert.label_heads(
            ("classifier.dense", "classifier.out_proj"), (f"{prefix}pooler.dense", "classifier")
        ),
    }


def _read(values: Mapping[str, Any], head: Head, tensors: dict[str, Tensor]) -> dict[str, Any]:
    pad, segments = values["pad_token_id"], values["type_vocab_size"]
    if not isinstance(pad, int) or pad < 0:
        raise ValueError(f"pad_token_id = {pad!r} in config.json, but positions are counted from it")
    return {
        "max_positions": values["max_position_embeddings"] - pad - 1,
        "num_segments": 0 if segments == 1 else segments,
    }


def _write(config: TransformerConfig, head: Head, token_ids: TokenIds) -> dict[str, Any]:
    return {
        "max_position_embeddings": config.max_positions + token_ids.pad + 1,
        "type_vocab_size": max(config.num_segments, 1),
        **token_ids.keys,
    }


def _fold_segment(tensors: dict[str, Tensor], values: Mapping[str, Any], prefix: str) -> dict[str, Tensor]:
    """Add the embedding of the only segment to the positions.

    Raises:
        ValueError: it is missing or not one row.
    """
    used = bert.modern_norms(tensors, values, prefix)
    positions = f"{prefix}embeddings.position_embeddings.weight"
    if values["type_vocab_size"] == 1 and positions in used:
        segment = used.pop(f"{prefix}{SEGMENTS}", None)
        if segment is None or segment.shape != (1, *used[positions].shape[1:]):
            found = None if segment is None else list(segment.shape)
            raise ValueError(f"{prefix}{SEGMENTS} must be one row, as type_vocab_size says, not {found}")
        used[positions] = used[positions].float() + segment.float()
    return used


def _add_segment(
    tensors: dict[str, Tensor], config: TransformerConfig, head: Head, prefix: str
) -> dict[str, Tensor]:
    positions = tensors[f"{prefix}embeddings.position_embeddings.weight"]
    return {} if config.num_segments else {f"{prefix}{SEGMENTS}": positions.new_zeros(1, positions.shape[1])}


_family = partial(
    Family,
    keys=bert.KEYS,
    defaults={**bert.DEFAULTS, "pad_token_id": 1},
    heads=_heads,
    read=_read,
    write=_write,
    prepare=_fold_segment,
    add=_add_segment,
    copies={
        "lm_head.decoder.weight": "{}embeddings.word_embeddings.weight",
        "lm_head.decoder.bias": "lm_head.bias",
    },
    **bert.SHARED,
)
_HEADS: tuple[Head, ...] = ("encoder", "masked_lm", *FINE_TUNED)
FAMILY = _family(
    name="RoBERTa",
    model_type="roberta",
    architectures=classes("Roberta", *_HEADS),
    base="roberta.",
    always=TransformerConfig(),
    body=partial(_body, bert.LAYER),
)
PRE_LAYER_NORM = _family(
    name="RoBERTa-PreLayerNorm",
    model_type="roberta-prelayernorm",
    architectures=classes("RobertaPreLayerNorm", *_HEADS),
    base="roberta_prelayernorm.",
    always=TransformerConfig(norm="pre"),
    body=partial(_body, PRE_NORM_LAYER),
)
