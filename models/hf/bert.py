"""BERT to and from Hugging Face. SpanBERT is a BERT, too: its head for span boundaries serves only its training.

Padding on the left shifts positions in `transformers`, which counts columns for BERT and ELECTRA; ours counts tokens.
Pass it `position_ids` there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from models.config import TransformerConfig
from models.hf import bert_names as bert
from models.hf.family import Family, Head, HfConfig, Tensors, TokenIds, differences, require_keys
from models.hf.names import Names, import_tensors, module, to_their_names
from models.hf.networks import build_on_meta

ARCHITECTURES: Mapping[str, Head] = {
    "BertModel": "encoder",
    "BertForMaskedLM": "masked_lm",
    "BertForPreTraining": "pretraining",
    "BertForSequenceClassification": "sequence_classification",
    "BertForQuestionAnswering": "question_answering",
}
PREDICTS_TOKENS: tuple[Head, ...] = ("masked_lm", "pretraining")


def obstacles(config: TransformerConfig, head: Head) -> list[str]:
    """Why a network cannot be written as BERT."""
    problems = differences(config, head, TransformerConfig(), bert.CARRIED | {"prediction_activation"})
    if not config.num_segments:
        problems.append("num_segments is 0, and it always has segments")
    if head in PREDICTS_TOKENS and config.prediction_activation != config.activation:
        problems.append(
            f"prediction_activation is {config.prediction_activation!r}, activation {config.activation!r}; they are "
            "equal there"
        )
    return problems


def to_hf(
    state_dict: Mapping[str, Tensor], config: TransformerConfig, head: Head, token_ids: TokenIds
) -> tuple[Tensors, HfConfig]:
    """Translate a network for `transformers`; see `Family`."""
    config_dict = {
        **bert.write_bert_config(config),
        "model_type": "bert",
        "pad_token_id": token_ids.pad,
    }
    return to_their_names(_table(config, head), state_dict), config_dict


def from_hf(
    tensors: Mapping[str, Tensor], config_dict: Mapping[str, Any]
) -> tuple[Tensors, TransformerConfig, Head]:
    """Translate a network of `transformers` into ours; see `Family`.

    Published files have more heads than their class uses. The others are left out, and so is the pooler where the head
    does not use it. A separate `classifier_dropout` is not kept.
    """
    head = ARCHITECTURES[config_dict["architectures"][0]]
    require_keys(config_dict, bert.REQUIRED)
    fields = bert.read_bert_config({**bert.DEFAULTS, **config_dict})
    config = TransformerConfig(**fields, prediction_activation=fields["activation"])
    prefix = bert.prefix_of("bert", head)
    unused = {"cls.seq_relationship.weight", "cls.seq_relationship.bias"} | bert.unused_names(prefix)
    if head in ("pretraining", "sequence_classification"):
        unused = bert.buffer_names(prefix)
    used = bert.drop_copies(
        bert.modern_names(tensors, "bert", head),
        {
            "cls.predictions.decoder.weight": f"{prefix}embeddings.word_embeddings.weight",
            "cls.predictions.decoder.bias": "cls.predictions.bias",
        },
        tied=config.tie_embeddings,
        unused=unused,
    )
    num_labels = len(used.get("classifier.weight", ())) or 1
    ours = build_on_meta(config, head, num_labels).state_dict()
    return import_tensors(_table(config, head), ours, used), config, head


def _table(config: TransformerConfig, head: Head) -> list[Names]:
    prefix = bert.prefix_of("bert", head)
    tokens = [
        *module("head.dense", "cls.predictions.transform.dense"),
        *module("head.norm", "cls.predictions.transform.LayerNorm"),
        *bert.vocabulary_names(config, "cls.predictions.decoder", "cls.predictions.bias"),
    ]
    heads: Mapping[str, list[Names]] = {
        "encoder": [],
        "masked_lm": tokens,
        "pretraining": [
            *tokens,
            *module("pair_head.pooler", "bert.pooler.dense"),
            *module("pair_head.output", "cls.seq_relationship"),
        ],
        "sequence_classification": [
            *module("head.dense", "bert.pooler.dense"),
            *module("head.output", "classifier"),
        ],
        "question_answering": module("output", "qa_outputs"),
    }
    return [
        *bert.embedding_names(config, f"{prefix}embeddings."),
        *bert.layer_names(config, f"{prefix}encoder.layer."),
        *heads[head],
    ]


FAMILY = Family(name="BERT", architectures=ARCHITECTURES, from_hf=from_hf, to_hf=to_hf, obstacles=obstacles)
