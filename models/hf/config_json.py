"""config.json: its keys and our fields, and what a family of models cannot say in it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from typing import Any, TypeAlias

from models.config import Activation, TransformerConfig
from models.generation.config import GenerationConfig
from models.hf.heads import Head

HfConfig: TypeAlias = dict[str, Any]
"""The contents of a config.json."""
ACTIVATION_NAMES: dict[Activation, str] = {
    "gelu": "gelu",
    "gelu_tanh": "gelu_pytorch_tanh",
    "relu": "relu",
    "silu": "silu",
}
_IMPORTED_ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}


def read_activation(values: Mapping[str, Any], key: str) -> Activation:
    """Our name of the activation under a key of config.json.

    Raises:
        ValueError: our core does not have it.
    """
    if values[key] not in _IMPORTED_ACTIVATIONS:
        raise ValueError(
            f"{key} = {values[key]!r} is not supported; it may be {', '.join(_IMPORTED_ACTIVATIONS)}"
        )
    return _IMPORTED_ACTIVATIONS[values[key]]


def require_keys(values: Mapping[str, Any], required: Mapping[str, Any]) -> None:
    """Refuse a config.json whose keys ask for a computation that our core does not have.

    Args:
        values: config.json.
        required: key to the only value that is supported; absent keys are fine.

    Raises:
        ValueError: names every other value.
    """
    problems = [
        f"{key} = {values[key]!r} (only {only!r} is supported)"
        for key, only in required.items()
        if values.get(key, only) != only
    ]
    if problems:
        raise ValueError("config.json asks for what these networks do not compute: " + "; ".join(problems))


def read_fields(values: Mapping[str, Any], keys: Mapping[str, tuple[str, Any]]) -> dict[str, Any]:
    """Fields of our configuration from config.json; `keys` as in `Family`."""
    if missing := [theirs for theirs, _ in keys.values() if theirs not in values]:
        raise ValueError(f"config.json has no {', '.join(missing)}")
    return {ours: values[theirs] for ours, (theirs, _) in keys.items()}


EFFECTIVE: Mapping[str, str] = {
    "num_decoder_layers": "decoder_layers",
    "num_key_value_heads": "key_value_heads",
    "attention_head_size": "head_size",
    "embedding_size": "embedding_width",
}
"""Fields that may be left open, and the properties that say what is used then."""


def write_fields(config: TransformerConfig, keys: Mapping[str, tuple[str, Any]]) -> HfConfig:
    """The opposite of `read_fields`; sizes that follow from others are written out."""
    return {theirs: getattr(config, EFFECTIVE.get(ours, ours)) for ours, (theirs, _) in keys.items()}


def generation_keys(config_dict: HfConfig, *others: str) -> HfConfig:
    """The special tokens of config.json, and `others` of its keys, for generation_config.json."""
    return {key: config_dict[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id", *others)}


def search_keys(search: GenerationConfig) -> HfConfig:
    """A search for generation_config.json. What is not drawn says so, because pipelines draw by default."""
    plain = GenerationConfig()
    changed = {
        field.name: value
        for field in fields(search)
        if (value := getattr(search, field.name)) != getattr(plain, field.name)
    }
    # Settings of beams without beams are refused when a network is saved again.
    unused = {"seed"} if search.num_beams > 1 else {"seed", "length_penalty", "early_stopping"}
    kept = {name: value for name, value in changed.items() if name not in unused}
    return {"do_sample": search.do_sample, "num_beams": search.num_beams, **kept}


def differences(
    config: TransformerConfig, head: Head, always: TransformerConfig, carried: Collection[str]
) -> list[str]:
    """The fields of a configuration that differ from what a family always has.

    Args:
        config: of the network to be written.
        head: its head.
        always: a configuration of the family.
        carried: names of fields that the family's config.json has a place for, so that they may differ.

    Returns:
        One sentence for each field that differs and changes what the network computes in evaluation.
    """
    silent = _without_effect(config, head, always) | set(carried)
    return [
        f"{field.name} is {value!r}, and it always has {wanted!r}"
        for field in fields(TransformerConfig)
        if field.name not in silent
        and (value := getattr(config, field.name)) != (wanted := getattr(always, field.name))
    ]


def label_names(num_labels: int, names: Sequence[str] | None = None) -> HfConfig:
    """Keys of config.json that give `transformers` the labels, by name or as LABEL_0, LABEL_1, ..."""
    names = names or [f"LABEL_{number}" for number in range(num_labels)]
    return {
        "id2label": {str(number): name for number, name in enumerate(names)},
        "label2id": {name: number for number, name in enumerate(names)},
    }


POOLED: tuple[Head, ...] = ("sequence_classification", "multiple_choice")
"""Heads that score a text by one token."""


SILENT = (
    *("vocab_size", "num_layers", "hidden_size", "num_heads", "intermediate_size"),
    *("initializer", "initializer_std", "initializer_cut", "position_std"),
    *("dropout", "attention_output_dropout", "attention_dropout", "activation_dropout", "output_dropout"),
)
"""Sizes, which every family has, and fields that change no output in evaluation."""


def _without_effect(config: TransformerConfig, head: Head, always: TransformerConfig) -> set[str]:
    """Fields that change no output of this network in evaluation."""
    per_token = head in ("question_answering", "token_classification")
    transformed = "gelu_norm" in (config.classification_head, always.classification_head)
    effects = {
        "num_key_value_heads": config.key_value_heads != config.num_heads,
        "attention_head_size": config.attention_size != config.hidden_size,
        "embedding_size": config.embedding_width != config.hidden_size,
        "num_decoder_layers": config.decoder_layers != config.num_layers,
        "relative_buckets": config.positions == "relative_bias",
        "relative_max_distance": config.positions == "relative_bias",
        "rotary_base": config.positions == "rotary",
        "local_rotary_base": config.positions == "rotary" and config.local_window is not None,
        "global_every": config.local_window is not None,
        "scale_logits": config.network != "encoder",
        "prediction_activation": head in ("masked_lm", "pretraining"),
        "classification_head": (config.network != "decoder" and head in POOLED)
        or (config.network == "encoder" and per_token and transformed),
    }
    return {*SILENT, *(name for name, effect in effects.items() if not effect)}
