"""BERT to and from Hugging Face. SpanBERT is a BERT, too: its head for span boundaries serves only its training.

Padding on the left shifts positions in `transformers`, which counts columns for BERT and ELECTRA; ours counts tokens.
Pass it `position_ids` there.
"""

from __future__ import annotations

from collections.abc import Mapping

from models.config import TransformerConfig
from models.hf import bert_names as bert
from models.hf.config_json import read_activation
from models.hf.family import Family
from models.hf.heads import FINE_TUNED, Head, classes
from models.hf.names import Names, module


def _pooler(prefix: str) -> list[Names]:
    return module("pair_head.pooler", f"{prefix}pooler.dense")


def _heads(config: TransformerConfig, prefix: str) -> Mapping[Head, list[Names]]:
    predictions = "cls.predictions"
    tokens = bert.prediction_names(
        config,
        f"{predictions}.transform.dense",
        f"{predictions}.transform.LayerNorm",
        f"{predictions}.decoder",
        f"{predictions}.bias",
    )
    pairs = [*_pooler(prefix), *module("pair_head.output", "cls.seq_relationship")]
    labels = f"{prefix}pooler.dense", "classifier"
    return {
        "encoder": [],
        "masked_lm": tokens,
        "pretraining": [*tokens, *pairs],
        **bert.label_heads(labels, labels),
    }


FAMILY = Family(
    name="BERT",
    model_type="bert",
    architectures=classes("Bert", "encoder", "masked_lm", "pretraining", *FINE_TUNED),
    base="bert.",
    always=TransformerConfig(),
    keys=bert.KEYS,
    defaults=bert.DEFAULTS,
    body=bert.body,
    heads=_heads,
    carried={"prediction_activation"},
    read=lambda values, head, tensors: {"prediction_activation": read_activation(values, "hidden_act")},
    write=lambda config, head, token_ids: {"pad_token_id": token_ids.pad},
    prepare=bert.modern_norms,
    pooler=_pooler,
    copies={
        "cls.predictions.decoder.weight": "{}embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
    problems=lambda config, head: bert.without_segments(config, head) + bert.other_prediction(config, head),
    **bert.SHARED,
)
