"""DistilBERT to and from Hugging Face (Sanh et al. 2019): BERT without segments and pooler."""

from __future__ import annotations

from collections.abc import Mapping

from models.config import TransformerConfig
from models.hf import bert
from models.hf.config_json import read_activation
from models.hf.family import Family
from models.hf.heads import FINE_TUNED, Head, classes
from models.hf.names import Names, layers

LAYER: Mapping[str, tuple[str, ...]] = {
    "attention.qkv": ("attention.q_lin", "attention.k_lin", "attention.v_lin"),
    "attention.output": ("attention.out_lin",),
    "attention_norm": ("sa_layer_norm",),
    "feed_forward.up": ("ffn.lin1",),
    "feed_forward.down": ("ffn.lin2",),
    "feed_forward_norm": ("output_layer_norm",),
}


def _body(config: TransformerConfig, prefix: str, pad: int) -> list[Names]:
    own = layers(config.num_layers, bert.LAYERS, f"{prefix}transformer.layer.", LAYER)
    return [*bert.embedding_names(config, prefix), *own]


def _heads(config: TransformerConfig, prefix: str) -> Mapping[Head, list[Names]]:
    pooled = ("pre_classifier", "classifier")
    return {
        "encoder": [],
        "masked_lm": bert.prediction_names(
            config, "vocab_transform", "vocab_layer_norm", "vocab_projector", "vocab_projector.bias"
        ),
        **bert.label_heads(pooled, pooled),
    }


def _problems(config: TransformerConfig, head: Head) -> list[str]:
    style = config.classification_head
    tells_it_from_bert = (
        [] if style == "relu" else [f"classification_head is {style!r}, and it always has 'relu'"]
    )
    return tells_it_from_bert + bert.other_prediction(config, head)


FAMILY = Family(
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
    defaults={
        "activation": "gelu",
    },
    body=_body,
    heads=_heads,
    carried={"prediction_activation"},
    read=lambda values, head, tensors: {"prediction_activation": read_activation(values, "activation")},
    write=lambda config, head, token_ids: {
        "pad_token_id": token_ids.pad,
        "qa_dropout": config.dropout,
        "seq_classif_dropout": config.dropout,
    },
    copies={"vocab_projector.weight": "{}embeddings.word_embeddings.weight"},
    problems=_problems,
    activation_key="activation",
    buffers=bert.SHARED["buffers"],
)
