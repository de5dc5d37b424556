"""ELECTRA to and from Hugging Face: the discriminator, the generator, and networks fine-tuned from them.

Hugging Face has the two networks in two directories, each with all of its tensors; ours share embeddings, and
`models.hf.parts` takes them apart.
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
    "ElectraModel": "encoder",
    "ElectraForPreTraining": "replaced_token_detection",
    "ElectraForMaskedLM": "masked_lm",
    "ElectraForSequenceClassification": "sequence_classification",
    "ElectraForQuestionAnswering": "question_answering",
}
DEFAULTS: Mapping[str, Any] = {
    **bert.DEFAULTS,
    "embedding_size": 128,
    "hidden_size": 256,
    "num_attention_heads": 4,
    "intermediate_size": 1024,
}
ALWAYS = TransformerConfig(classification_head="gelu")


def obstacles(config: TransformerConfig, head: Head) -> list[str]:
    """Why a network cannot be written as ELECTRA."""
    problems = differences(config, head, ALWAYS, bert.CARRIED | {"embedding_size"})
    if not config.num_segments:
        problems.append("num_segments is 0, and it always has segments")
    return problems


def to_hf(
    state_dict: Mapping[str, Tensor], config: TransformerConfig, head: Head, token_ids: TokenIds
) -> tuple[Tensors, HfConfig]:
    """Translate a network for `transformers`; see `Family`."""
    config_dict = {
        **bert.write_bert_config(config),
        "model_type": "electra",
        "embedding_size": config.embedding_width,
        "pad_token_id": token_ids.pad,
    }
    return to_their_names(_table(config, head), state_dict), config_dict


def from_hf(
    tensors: Mapping[str, Tensor], config_dict: Mapping[str, Any]
) -> tuple[Tensors, TransformerConfig, Head]:
    """Translate a network of `transformers` into ours; see `Family`. A separate `classifier_dropout` is not kept."""
    head = ARCHITECTURES[config_dict["architectures"][0]]
    config = _read_config({**DEFAULTS, **config_dict})
    prefix = bert.prefix_of("electra", head)
    used = bert.drop_copies(
        bert.modern_names(tensors, "electra", head),
        {"generator_lm_head.weight": f"{prefix}embeddings.word_embeddings.weight"},
        tied=config.tie_embeddings,
        unused=bert.buffer_names(prefix),
    )
    num_labels = len(used.get("classifier.out_proj.weight", ())) or 1
    ours = build_on_meta(config, head, num_labels).state_dict()
    return import_tensors(_table(config, head), ours, used), config, head


def _table(config: TransformerConfig, head: Head) -> list[Names]:
    prefix = bert.prefix_of("electra", head)
    projected = config.embedding_width != config.hidden_size
    heads: Mapping[str, list[Names]] = {
        "encoder": [],
        "replaced_token_detection": [
            *module("head.dense", "discriminator_predictions.dense"),
            *module("head.output", "discriminator_predictions.dense_prediction"),
        ],
        "masked_lm": [
            *module("head.dense", "generator_predictions.dense"),
            *module("head.norm", "generator_predictions.LayerNorm"),
            *bert.vocabulary_names(config, "generator_lm_head", "generator_lm_head.bias"),
        ],
        "sequence_classification": [
            *module("head.dense", "classifier.dense"),
            *module("head.output", "classifier.out_proj"),
        ],
        "question_answering": module("output", "qa_outputs"),
    }
    return [
        *bert.embedding_names(config, f"{prefix}embeddings."),
        *(module("encoder.embeddings.projection", f"{prefix}embeddings_project") if projected else []),
        *bert.layer_names(config, f"{prefix}encoder.layer."),
        *heads[head],
    ]


def _read_config(values: Mapping[str, Any]) -> TransformerConfig:
    require_keys(values, bert.REQUIRED)
    width = values["embedding_size"]
    return TransformerConfig(
        **bert.read_bert_config(values),
        embedding_size=None if width == values["hidden_size"] else width,
        classification_head=ALWAYS.classification_head,
    )


FAMILY = Family(
    name="ELECTRA", architectures=ARCHITECTURES, from_hf=from_hf, to_hf=to_hf, obstacles=obstacles
)
