"""ELECTRA to and from Hugging Face: the discriminator, the generator, and networks fine-tuned from them.

Hugging Face has the two networks in two directories, each with all of its tensors; ours share embeddings, and
`models.hf.parts` takes them apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from models.config import TransformerConfig
from models.hf import bert
from models.hf.config_json import require_keys
from models.hf.family import Family
from models.hf.heads import FINE_TUNED, Head, classes
from models.hf.names import Names, module


def _body(config: TransformerConfig, prefix: str, pad: int) -> list[Names]:
    projected = config.embedding_width != config.hidden_size
    projection = module("encoder.embeddings.projection", f"{prefix}embeddings_project") if projected else []
    return [*bert.body(config, prefix, pad), *projection]


def _heads(config: TransformerConfig, prefix: str) -> Mapping[Head, list[Names]]:
    detector = "discriminator_predictions"
    return {
        "encoder": [],
        "replaced_token_detection": bert.pooled_head(f"{detector}.dense", f"{detector}.dense_prediction"),
        "masked_lm": bert.prediction_names(
            config,
            "generator_predictions.dense",
            "generator_predictions.LayerNorm",
            "generator_lm_head",
            "generator_lm_head.bias",
        ),
        **bert.label_heads(
            ("classifier.dense", "classifier.out_proj"), ("sequence_summary.summary", "classifier")
        ),
    }


def _read(values: Mapping[str, Any], head: Head, tensors: dict[str, Tensor]) -> dict[str, Any]:
    if head == "multiple_choice":
        require_keys(
            values, {"summary_type": "first", "summary_use_proj": True, "summary_activation": "gelu"}
        )
    return {}


FAMILY = Family(
    name="ELECTRA",
    model_type="electra",
    architectures=classes("Electra", "encoder", "replaced_token_detection", "masked_lm", *FINE_TUNED),
    base="electra.",
    always=TransformerConfig(classification_head="gelu"),
    keys={
        **bert.KEYS,
        "embedding_size": ("embedding_size", 128),
        "hidden_size": ("hidden_size", 256),
        "num_heads": ("num_attention_heads", 4),
        "intermediate_size": ("intermediate_size", 1024),
    },
    defaults=bert.DEFAULTS,
    body=_body,
    heads=_heads,
    read=_read,
    write=lambda config, head, token_ids: {"pad_token_id": token_ids.pad},
    prepare=bert.modern_norms,
    copies={"generator_lm_head.weight": "{}embeddings.word_embeddings.weight"},
    problems=bert.without_segments,
    **bert.SHARED,
)
