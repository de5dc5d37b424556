"""BERT to and from Hugging Face, with DistilBERT (Sanh et al. 2019) and ELECTRA (Clark et al. 2020).

SpanBERT is a BERT: its head for span boundaries serves only its training. DistilBERT is BERT without segments and
pooler. Hugging Face has ELECTRA's discriminator and generator in two directories, each with all of its tensors; ours
share embeddings, and `heads.generator_part` takes them apart.

Padding on the left shifts positions in `transformers`, which counts columns for BERT and ELECTRA; ours counts tokens.
Pass it `position_ids` there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from models.config import TransformerConfig
from models.hf.config_json import read_activation, require_keys
from models.hf.family import Family
from models.hf.heads import FINE_TUNED, Head, classes
from models.hf.names import Names, layers, module, parameter

KEYS: Mapping[str, tuple[str, Any]] = {
    "vocab_size": ("vocab_size", ...),
    "num_layers": ("num_hidden_layers", 12),
    "hidden_size": ("hidden_size", 768),
    "num_heads": ("num_attention_heads", 12),
    "intermediate_size": ("intermediate_size", 3072),
    "max_positions": ("max_position_embeddings", 512),
    "num_segments": ("type_vocab_size", 2),
    "dropout": ("hidden_dropout_prob", 0.1),
    "attention_dropout": ("attention_probs_dropout_prob", 0.1),
    "norm_eps": ("layer_norm_eps", 1e-12),
    "initializer_std": ("initializer_range", 0.02),
    "tie_embeddings": ("tie_word_embeddings", True),
}
DEFAULTS: Mapping[str, Any] = {"hidden_act": "gelu"}
SHARED: Mapping[str, Any] = {
    "activation_key": "hidden_act",
    "required": {
        "is_decoder": False,
        "add_cross_attention": False,
        "position_embedding_type": "absolute",
    },
    "buffers": r"(^|\.)embeddings\.(position_ids|token_type_ids)$",
}
"""Members of `Family` that all of them have."""


def modern_norms(tensors: dict[str, Tensor], values: Mapping[str, Any], prefix: str) -> dict[str, Tensor]:
    """Weights and biases of norms, which the first published files call gamma and beta, under the names of now."""
    renamed = {}
    for name, tensor in tensors.items():
        for old, new in (("LayerNorm.gamma", "LayerNorm.weight"), ("LayerNorm.beta", "LayerNorm.bias")):
            name = name.removesuffix(old) + new if name.endswith(old) else name
        renamed[name] = tensor
    return renamed


LAYERS = "encoder.transformer.layers."


def body(config: TransformerConfig, prefix: str, pad: int) -> list[Names]:
    """Tensors of embeddings and layers."""
    return [
        *embedding_names(config, prefix),
        *layers(config.num_layers, LAYERS, f"{prefix}encoder.layer.", LAYER),
    ]


def embedding_names(config: TransformerConfig, prefix: str, *, skipped: int = 0) -> list[Names]:
    """Tensors of the embeddings.

    Args:
        skipped: rows before the first position.
    """
    ours, theirs = "encoder.embeddings", f"{prefix}embeddings"
    segments = parameter(f"{ours}.segments.weight", f"{theirs}.token_type_embeddings.weight")
    return [
        *parameter(f"{ours}.tokens.weight", f"{theirs}.word_embeddings.weight"),
        *parameter(f"{ours}.positions.weight", f"{theirs}.position_embeddings.weight", skipped=skipped),
        *(segments if config.num_segments else []),
        *module(f"{ours}.norm", f"{theirs}.LayerNorm"),
    ]


LAYER: Mapping[str, tuple[str, ...]] = {
    "attention.qkv": ("attention.self.query", "attention.self.key", "attention.self.value"),
    "attention.output": ("attention.output.dense",),
    "attention_norm": ("attention.output.LayerNorm",),
    "feed_forward.up": ("intermediate.dense",),
    "feed_forward.down": ("output.dense",),
    "feed_forward_norm": ("output.LayerNorm",),
}
"""Our modules of a layer and theirs."""


def prediction_names(
    config: TransformerConfig, dense: str, norm: str, decoder: str, bias: str
) -> list[Names]:
    """The head that predicts tokens.

    Args:
        dense: their linear layer before the projection.
        norm: their norm.
        decoder: their projection to the vocabulary.
        bias: name of the bias that is used with tied embeddings. Untied, `transformers` adds the bias of `decoder`
            and stores this one without using it.
    """
    projection = parameter("head.decoder.bias", bias)
    if not config.tie_embeddings:
        projection += module("head.decoder", decoder)
    return [*module("head.dense", dense), *module("head.norm", norm), *projection]


def label_heads(sequence: tuple[str, str], choice: tuple[str, str]) -> dict[Head, list[Names]]:
    """The heads of fine-tuning.

    Args:
        sequence: the dense layer and the scores of sequence classification.
        choice: the dense layer and the scores of multiple choice.
    """
    return {
        "sequence_classification": pooled_head(*sequence),
        "multiple_choice": pooled_head(*choice),
        "token_classification": module("scores", "classifier"),
        "question_answering": module("output", "qa_outputs"),
    }


def pooled_head(dense: str, scores: str) -> list[Names]:
    """A dense layer on one token of a text, and its scores."""
    return [*module("head.dense", dense), *module("head.output", scores)]


def without_segments(config: TransformerConfig, head: Head) -> list[str]:
    """The obstacle for families that always have segments."""
    return [] if config.num_segments else ["num_segments is 0, and it always has segments"]


def other_prediction(config: TransformerConfig, head: Head) -> list[str]:
    """The obstacle for families whose head predicts tokens with the activation of the layers."""
    if head not in ("masked_lm", "pretraining") or config.prediction_activation == config.activation:
        return []
    return [
        f"prediction_activation is {config.prediction_activation!r}, activation {config.activation!r}; they are equal "
        "there"
    ]


def _pooler(prefix: str) -> list[Names]:
    return module("pair_head.pooler", f"{prefix}pooler.dense")


def _bert_heads(config: TransformerConfig, prefix: str) -> Mapping[Head, list[Names]]:
    predictions = "cls.predictions"
    tokens = prediction_names(
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
        **label_heads(labels, labels),
    }


FAMILY = Family(
    name="BERT",
    model_type="bert",
    architectures=classes("Bert", "encoder", "masked_lm", "pretraining", *FINE_TUNED),
    base="bert.",
    always=TransformerConfig(),
    keys=KEYS,
    defaults=DEFAULTS,
    body=body,
    heads=_bert_heads,
    carried={"prediction_activation"},
    read=lambda values, head, tensors: {"prediction_activation": read_activation(values, "hidden_act")},
    write=lambda config, head, token_ids: {"pad_token_id": token_ids.pad},
    prepare=modern_norms,
    pooler=_pooler,
    copies={
        "cls.predictions.decoder.weight": "{}embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
    problems=lambda config, head: without_segments(config, head) + other_prediction(config, head),
    **SHARED,
)


DISTILBERT_LAYER: Mapping[str, tuple[str, ...]] = {
    "attention.qkv": ("attention.q_lin", "attention.k_lin", "attention.v_lin"),
    "attention.output": ("attention.out_lin",),
    "attention_norm": ("sa_layer_norm",),
    "feed_forward.up": ("ffn.lin1",),
    "feed_forward.down": ("ffn.lin2",),
    "feed_forward_norm": ("output_layer_norm",),
}


def _distilbert_heads(config: TransformerConfig, prefix: str) -> Mapping[Head, list[Names]]:
    pooled = ("pre_classifier", "classifier")
    return {
        "encoder": [],
        "masked_lm": prediction_names(
            config, "vocab_transform", "vocab_layer_norm", "vocab_projector", "vocab_projector.bias"
        ),
        **label_heads(pooled, pooled),
    }


def _other_than_distilbert(config: TransformerConfig, head: Head) -> list[str]:
    style = config.classification_head
    tells_it_from_bert = (
        [] if style == "relu" else [f"classification_head is {style!r}, and it always has 'relu'"]
    )
    return tells_it_from_bert + other_prediction(config, head)


DISTILBERT = Family(
    name="DistilBERT",
    model_type="distilbert",
    architectures=classes("DistilBert", "encoder", "masked_lm", *FINE_TUNED),
    base="distilbert.",
    always=TransformerConfig(norm_eps=1e-12, classification_head="relu"),
    keys={
        "vocab_size": ("vocab_size", ...),
        "num_layers": ("n_layers", 6),
        "hidden_size": ("dim", 768),
        "num_heads": ("n_heads", 12),
        "intermediate_size": ("hidden_dim", 3072),
        "max_positions": ("max_position_embeddings", 512),
        "dropout": ("dropout", 0.1),
        "attention_dropout": ("attention_dropout", 0.1),
        "initializer_std": ("initializer_range", 0.02),
        "tie_embeddings": ("tie_word_embeddings", True),
    },
    defaults={"activation": "gelu"},
    body=lambda config, prefix, pad: [
        *embedding_names(config, prefix),
        *layers(config.num_layers, LAYERS, f"{prefix}transformer.layer.", DISTILBERT_LAYER),
    ],
    heads=_distilbert_heads,
    carried={"prediction_activation"},
    read=lambda values, head, tensors: {"prediction_activation": read_activation(values, "activation")},
    write=lambda config, head, token_ids: {
        "pad_token_id": token_ids.pad,
        "qa_dropout": config.dropout,
        "seq_classif_dropout": config.dropout,
    },
    copies={"vocab_projector.weight": "{}embeddings.word_embeddings.weight"},
    problems=_other_than_distilbert,
    activation_key="activation",
    buffers=SHARED["buffers"],
)


def _electra_body(config: TransformerConfig, prefix: str, pad: int) -> list[Names]:
    projected = config.embedding_width != config.hidden_size
    projection = module("encoder.embeddings.projection", f"{prefix}embeddings_project") if projected else []
    return [*body(config, prefix, pad), *projection]


def _electra_heads(config: TransformerConfig, prefix: str) -> Mapping[Head, list[Names]]:
    detector = "discriminator_predictions"
    return {
        "encoder": [],
        "replaced_token_detection": pooled_head(f"{detector}.dense", f"{detector}.dense_prediction"),
        "masked_lm": prediction_names(
            config,
            "generator_predictions.dense",
            "generator_predictions.LayerNorm",
            "generator_lm_head",
            "generator_lm_head.bias",
        ),
        **label_heads(
            ("classifier.dense", "classifier.out_proj"), ("sequence_summary.summary", "classifier")
        ),
    }


def _read_electra(values: Mapping[str, Any], head: Head, tensors: dict[str, Tensor]) -> dict[str, Any]:
    if head == "multiple_choice":
        require_keys(
            values, {"summary_type": "first", "summary_use_proj": True, "summary_activation": "gelu"}
        )
    return {}


ELECTRA = Family(
    name="ELECTRA",
    model_type="electra",
    architectures=classes("Electra", "encoder", "replaced_token_detection", "masked_lm", *FINE_TUNED),
    base="electra.",
    always=TransformerConfig(classification_head="gelu"),
    keys={
        **KEYS,
        "embedding_size": ("embedding_size", 128),
        "hidden_size": ("hidden_size", 256),
        "num_heads": ("num_attention_heads", 4),
        "intermediate_size": ("intermediate_size", 1024),
    },
    defaults=DEFAULTS,
    body=_electra_body,
    heads=_electra_heads,
    read=_read_electra,
    write=lambda config, head, token_ids: {"pad_token_id": token_ids.pad},
    prepare=modern_norms,
    copies={"generator_lm_head.weight": "{}embeddings.word_embeddings.weight"},
    problems=without_segments,
    **SHARED,
)
