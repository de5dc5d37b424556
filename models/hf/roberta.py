"""RoBERTa to and from Hugging Face: `roberta` (post-norm) and `roberta-prelayernorm` (pre-norm).

The layouts differ in three places. Hugging Face keeps queries, keys and values apart. It counts positions
from pad_token_id + 1, with unused rows before. And it adds an embedding of the segment, of which RoBERTa has
one: a constant that is folded into the positions on import and exported as zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from models.config import Activation, Norm, TransformerConfig
from models.masked_language_model import MaskedLanguageModel
from models.sequence_classifier import SequenceClassifier
from models.weights import check_tensors


@dataclass(frozen=True)
class Family:
    """How `transformers` names one of the two architectures."""

    model_type: str
    """`model_type` in its configuration."""
    class_prefix: str
    """Beginning of its class names, as in `architectures`."""
    tensor_prefix: str
    """Beginning of its encoder's tensor names."""
    attention_norm: str
    """LayerNorm of the attention block, within a layer."""
    feed_forward_norm: str
    """LayerNorm of the feed-forward block, within a layer."""


FAMILIES: dict[Norm, Family] = {
    "post": Family(
        model_type="roberta",
        class_prefix="Roberta",
        tensor_prefix="roberta",
        attention_norm="attention.output.LayerNorm",
        feed_forward_norm="output.LayerNorm",
    ),
    "pre": Family(
        model_type="roberta-prelayernorm",
        class_prefix="RobertaPreLayerNorm",
        tensor_prefix="roberta_prelayernorm",
        attention_norm="attention.LayerNorm",
        feed_forward_norm="intermediate.LayerNorm",
    ),
}
MASKED_LM = "ForMaskedLM"
CLASSIFICATION = "ForSequenceClassification"

ACTIVATION_NAMES: dict[Activation, str] = {"gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh", "relu": "relu"}
IMPORTED_ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}

CONFIG_DEFAULTS: dict[str, Any] = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "max_position_embeddings": 512,
    "initializer_range": 0.02,
    "layer_norm_eps": 1e-12,
    "pad_token_id": 1,
    "tie_word_embeddings": True,
}
"""What `transformers.RobertaConfig` assumes for keys that a config.json leaves out."""


def to_hf(
    state_dict: Mapping[str, Tensor],
    config: TransformerConfig,
    *,
    pad_token_id: int = 1,
    bos_token_id: int = 0,
    eos_token_id: int = 2,
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Translate a network for `transformers`.

    Args:
        state_dict: the state of a `MaskedLanguageModel` or a `SequenceClassifier`.
        config: its configuration.
        pad_token_id: padding in the vocabulary. Hugging Face derives positions from it.
        bos_token_id: `<s>` in the vocabulary.
        eos_token_id: `</s>` in the vocabulary.

    Returns:
        The state dict (tensors may share memory with the given ones) and the contents of config.json.

    Raises:
        ValueError: tensors are missing, unexpected or of another shape; they are named.
    """
    head = _head_of(state_dict)
    num_labels = state_dict["head.output.weight"].shape[0] if head == CLASSIFICATION else 0
    check_tensors(_on_meta(config, head, num_labels).state_dict(), state_dict, "the state dict to export")

    family = FAMILIES[config.norm]
    exported = {theirs: state_dict[ours] for ours, theirs in _same_tensors(config, head).items()}
    for ours, theirs in _attention_blocks(config):
        for kind in ("weight", "bias"):
            parts = state_dict[f"{ours}.qkv.{kind}"].chunk(3)
            for name, part in zip(("query", "key", "value"), parts, strict=True):
                exported[f"{theirs}.self.{name}.{kind}"] = part
    positions = state_dict["encoder.embeddings.positions.weight"]
    unused = positions.new_zeros(pad_token_id + 1, config.hidden_size)
    embeddings = f"{family.tensor_prefix}.embeddings"
    exported[f"{embeddings}.position_embeddings.weight"] = torch.cat([unused, positions])
    exported[f"{embeddings}.token_type_embeddings.weight"] = positions.new_zeros(1, config.hidden_size)

    hf_config: dict[str, Any] = {
        "model_type": family.model_type,
        "architectures": [family.class_prefix + head],
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "intermediate_size": config.intermediate_size,
        "hidden_act": ACTIVATION_NAMES[config.activation],
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": config.attention_dropout,
        "max_position_embeddings": config.max_positions + pad_token_id + 1,
        "type_vocab_size": 1,
        "initializer_range": config.initializer_std,
        "layer_norm_eps": config.norm_eps,
        "pad_token_id": pad_token_id,
        "bos_token_id": bos_token_id,
        "eos_token_id": eos_token_id,
        "tie_word_embeddings": config.tie_embeddings,
        "dtype": str(positions.dtype).removeprefix("torch."),
    }
    if head == CLASSIFICATION:
        hf_config["id2label"] = {str(label): f"LABEL_{label}" for label in range(num_labels)}
        hf_config["label2id"] = {f"LABEL_{label}": label for label in range(num_labels)}
    return exported, hf_config


def from_hf(
    state_dict: Mapping[str, Tensor], config_dict: Mapping[str, Any]
) -> tuple[dict[str, Tensor], TransformerConfig]:
    """Translate a network of `transformers` into ours.

    Args:
        state_dict: the tensors of RobertaForMaskedLM, RobertaForSequenceClassification or their PreLayerNorm
            variants. Tensors that those classes carry but never use, such as the pooler in the published
            RoBERTa files, are left out.
        config_dict: the contents of config.json. A separate `classifier_dropout` is not kept: the
            classification head drops out like the rest of the network.

    Returns:
        The state dict of a `MaskedLanguageModel` or a `SequenceClassifier` (tensors may share memory with the
        given ones) and its configuration. The rows of `head.output.weight` are the number of labels.

    Raises:
        ValueError: another architecture; tensors are missing, unexpected or of another shape; they are named.
    """
    norm, head = _architecture_of(config_dict)
    values = CONFIG_DEFAULTS | dict(config_dict)
    config = _config_from_hf(norm, values)
    family = FAMILIES[norm]
    tensors = _used_tensors(state_dict, family, tied=config.tie_embeddings)
    types = f"{family.tensor_prefix}.embeddings.token_type_embeddings.weight"
    if types in tensors:
        # RoBERTa feeds segment 0 everywhere, also where the configuration allows for more.
        tensors[types] = tensors[types][:1]
    num_labels = len(tensors.get("classifier.out_proj.weight", ())) or 1
    expected, _ = to_hf(
        _on_meta(config, head, num_labels).state_dict(), config, pad_token_id=values["pad_token_id"]
    )
    check_tensors(expected, tensors, "the Hugging Face state dict")

    imported = {ours: tensors[theirs] for ours, theirs in _same_tensors(config, head).items()}
    for ours, theirs in _attention_blocks(config):
        for kind in ("weight", "bias"):
            parts = [tensors[f"{theirs}.self.{name}.{kind}"] for name in ("query", "key", "value")]
            imported[f"{ours}.qkv.{kind}"] = torch.cat(parts)
    positions = tensors[f"{family.tensor_prefix}.embeddings.position_embeddings.weight"]
    imported["encoder.embeddings.positions.weight"] = positions[values["pad_token_id"] + 1 :] + tensors[types]
    return imported, config


def _same_tensors(config: TransformerConfig, head: str) -> dict[str, str]:
    """Tensors that are the same in both layouts: our name to theirs."""
    family = FAMILIES[config.norm]
    theirs = family.tensor_prefix
    modules = {"encoder.embeddings.norm": f"{theirs}.embeddings.LayerNorm"}
    for index in range(config.num_layers):
        layer, their_layer = f"encoder.transformer.layers.{index}", f"{theirs}.encoder.layer.{index}"
        modules |= {
            f"{layer}.attention.output": f"{their_layer}.attention.output.dense",
            f"{layer}.attention_norm": f"{their_layer}.{family.attention_norm}",
            f"{layer}.feed_forward.up": f"{their_layer}.intermediate.dense",
            f"{layer}.feed_forward.down": f"{their_layer}.output.dense",
            f"{layer}.feed_forward_norm": f"{their_layer}.{family.feed_forward_norm}",
        }
    if config.norm == "pre":
        modules["encoder.transformer.final_norm"] = f"{theirs}.LayerNorm"
    if head == MASKED_LM:
        modules |= {"head.dense": "lm_head.dense", "head.norm": "lm_head.layer_norm"}
    else:
        modules |= {"head.dense": "classifier.dense", "head.output": "classifier.out_proj"}
    tensors = {
        f"{ours}.{kind}": f"{name}.{kind}" for ours, name in modules.items() for kind in ("weight", "bias")
    }
    tensors["encoder.embeddings.tokens.weight"] = f"{theirs}.embeddings.word_embeddings.weight"
    if head == MASKED_LM and config.tie_embeddings:
        tensors["head.decoder.bias"] = "lm_head.bias"
    elif head == MASKED_LM:
        # Untied, transformers adds the bias of `decoder` and leaves `lm_head.bias` unused.
        tensors["head.decoder.bias"] = "lm_head.decoder.bias"
        tensors["head.decoder.weight"] = "lm_head.decoder.weight"
    return tensors


def _attention_blocks(config: TransformerConfig) -> list[tuple[str, str]]:
    theirs = FAMILIES[config.norm].tensor_prefix
    return [
        (f"encoder.transformer.layers.{index}.attention", f"{theirs}.encoder.layer.{index}.attention")
        for index in range(config.num_layers)
    ]


def _head_of(state_dict: Mapping[str, Tensor]) -> str:
    if "head.decoder.bias" in state_dict:
        return MASKED_LM
    if "head.output.weight" in state_dict:
        return CLASSIFICATION
    raise ValueError(
        "the state dict to export has neither head.decoder.bias (masked language model) nor "
        "head.output.weight (sequence classifier); export the state of a whole network"
    )


def _on_meta(config: TransformerConfig, head: str, num_labels: int) -> nn.Module:
    """The network without memory: its state dict tells names and shapes."""
    with torch.device("meta"):
        return MaskedLanguageModel(config) if head == MASKED_LM else SequenceClassifier(config, num_labels)


def _architecture_of(config_dict: Mapping[str, Any]) -> tuple[Norm, str]:
    known: dict[str, tuple[Norm, str]] = {
        family.class_prefix + head: (norm, head)
        for norm, family in FAMILIES.items()
        for head in (MASKED_LM, CLASSIFICATION)
    }
    architectures = config_dict.get("architectures") or []
    if len(architectures) != 1 or architectures[0] not in known:
        raise ValueError(
            f"cannot read a Hugging Face model with architectures {list(architectures)} "
            f"(model_type {config_dict.get('model_type')!r}); supported: {', '.join(known)}"
        )
    return known[architectures[0]]


def _config_from_hf(norm: Norm, values: Mapping[str, Any]) -> TransformerConfig:
    required = {
        "is_decoder": False,
        "add_cross_attention": False,
        "position_embedding_type": "absolute",
    }
    for key, value in required.items():
        if values.get(key, value) != value:
            raise ValueError(
                f"cannot read a RoBERTa with {key} = {values[key]!r}; only {value!r} is supported"
            )
    if values["hidden_act"] not in IMPORTED_ACTIVATIONS:
        raise ValueError(
            f"cannot read a RoBERTa with hidden_act = {values['hidden_act']!r}; "
            f"supported: {', '.join(IMPORTED_ACTIVATIONS)}"
        )
    pad_token_id = values["pad_token_id"]
    if not isinstance(pad_token_id, int) or pad_token_id < 0:
        raise ValueError(f"pad_token_id = {pad_token_id!r} in config.json, but positions are counted from it")
    if "vocab_size" not in values:
        raise ValueError("config.json has no vocab_size")
    return TransformerConfig(
        vocab_size=values["vocab_size"],
        num_layers=values["num_hidden_layers"],
        hidden_size=values["hidden_size"],
        num_heads=values["num_attention_heads"],
        intermediate_size=values["intermediate_size"],
        max_positions=values["max_position_embeddings"] - pad_token_id - 1,
        dropout=values["hidden_dropout_prob"],
        attention_dropout=values["attention_probs_dropout_prob"],
        norm=norm,
        norm_eps=values["layer_norm_eps"],
        activation=IMPORTED_ACTIVATIONS[values["hidden_act"]],
        initializer_std=values["initializer_range"],
        tie_embeddings=values["tie_word_embeddings"],
    )


def _used_tensors(state_dict: Mapping[str, Tensor], family: Family, tied: bool) -> dict[str, Tensor]:
    """Leave out what `transformers` stores without computing with it, and second names of one tensor."""
    prefix = family.tensor_prefix
    unused = {
        f"{prefix}.pooler.dense.weight",
        f"{prefix}.pooler.dense.bias",
        f"{prefix}.embeddings.position_ids",
        f"{prefix}.embeddings.token_type_ids",
    }
    tensors = {name: tensor for name, tensor in state_dict.items() if name not in unused}
    if not tied:
        bias = tensors.pop("lm_head.bias", None)
        if bias is not None:
            tensors.setdefault("lm_head.decoder.bias", bias)
        return tensors
    for copy, original in (
        ("lm_head.decoder.weight", f"{prefix}.embeddings.word_embeddings.weight"),
        ("lm_head.decoder.bias", "lm_head.bias"),
    ):
        if copy in tensors and original in tensors:
            if not torch.equal(tensors[copy], tensors[original]):
                raise ValueError(
                    f"config.json ties {copy} to {original}, but their values differ; "
                    "set tie_word_embeddings to false there if they were trained apart"
                )
            del tensors[copy]
    return tensors
