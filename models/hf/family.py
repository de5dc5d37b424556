"""A family of Hugging Face models: one architecture of `transformers`, to and from our networks."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor

from models.config import TransformerConfig
from models.hf.config_json import (
    ACTIVATION_NAMES,
    HfConfig,
    differences,
    read_activation,
    read_fields,
    require_keys,
    write_fields,
)
from models.hf.heads import Head, build_on_meta, labels_in
from models.hf.names import Names, import_tensors, to_our_names, to_their_names

Tensors: TypeAlias = dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class TokenIds:
    """Special tokens of the vocabulary, for config.json. The defaults are RoBERTa's and BART's."""

    pad: int = 1
    """Padding. RoBERTa derives positions from it, T5's decoder starts with it."""
    bos: int | None = 0
    """`<s>` or `[CLS]`; None where there is none."""
    eos: int | None = 2
    """`</s>` or `[SEP]`; None where there is none."""

    @property
    def keys(self) -> HfConfig:
        """All three under their names in config.json."""
        return {"pad_token_id": self.pad, "bos_token_id": self.bos, "eos_token_id": self.eos}


@dataclass(frozen=True)
class Imported:
    """A network of `transformers` as one of ours."""

    family: str
    state_dict: Tensors
    """float32, under the names of our network."""
    config: TransformerConfig
    head: Head
    left_out: tuple[str, ...] = ()
    """Tensors of other heads that were in the file and are not part of this network, by their names there."""
    pooler: Tensors = field(default_factory=dict)
    """The pooler's tensors among them, for classification: float32, under our names; empty without a pooler."""


@dataclass(frozen=True)
class Family:
    """One architecture: tables of its tensors and keys, and functions where a table does not say it.

    Functions see checked input: weights are finite floats, `architectures` is one of the family's names. `prefix` is
    what the names of a network's tensors begin with, without its head: `base`, or nothing in a bare network.
    """

    name: str
    """As people write it: "BERT"."""
    model_type: str
    """As config.json has it."""
    architectures: Mapping[str, Head]
    """Class names in config.json that are read; of several with the same head, the first is written."""
    base: str
    """The prefix of a network with a head."""
    always: TransformerConfig
    """The fields that config.json has no place for have these values."""
    keys: Mapping[str, tuple[str, Any]]
    """Our fields, with their keys and the values that `transformers` assumes where a config.json leaves them out; `...`
    where it may not."""
    defaults: Mapping[str, Any]
    """The values that it assumes for further keys."""
    body: Callable[[TransformerConfig, str, int], list[Names]]
    """(configuration, prefix, padding id) to the tensors of the network without its head."""
    heads: Callable[[TransformerConfig, str], Mapping[Head, list[Names]]]
    """(configuration, prefix) to the tensors of every head."""
    activation_key: str | None = None
    """The key of the activation, if it has one of its own."""
    carried: Collection[str] = ()
    """Further fields that `read` and `write` translate."""
    required: Mapping[str, Any] = field(default_factory=dict)
    """Keys that would change the computation, with the only value that is supported."""
    read: Callable[[Mapping[str, Any], Head, Tensors], Mapping[str, Any]] = lambda values, head, tensors: {}
    """(config.json with defaults, head, tensors) to fields that differ from what `keys` give. Raises ValueError: a key
    asks for a computation that our core lacks."""
    write: Callable[[TransformerConfig, Head, TokenIds], HfConfig] = lambda config, head, token_ids: {}
    """(configuration, head, token ids) to keys that differ from what `keys` give."""
    prepare: Callable[[Tensors, Mapping[str, Any], str], Tensors] = lambda tensors, values, prefix: tensors
    """(tensors, config.json with defaults, prefix) to the tensors under the names that classes have now."""
    add: Callable[[Tensors, TransformerConfig, Head, str], Tensors] = lambda tensors, config, head, prefix: {}
    """(translated tensors, configuration, head, prefix) to those that they have and we do not."""
    copies: Mapping[str, str] = field(default_factory=dict)
    """Pairs of names that tied embeddings make equal, the second and the first; `{}` is the prefix."""
    buffers: str = "(?!)"
    """A regular expression for names of tensors that old files store and classes compute now."""
    pooler: Callable[[str], list[Names]] = lambda prefix: []
    """(prefix) to the tensors of the pooler that classification starts from, whichever head a file has."""
    bare: Collection[Head] = ("encoder",)
    """Heads whose classes have no prefix."""
    problems: Callable[[TransformerConfig, Head], list[str]] = lambda config, head: []
    """(configuration, head) to further obstacles."""
    generation_config: Callable[[HfConfig], HfConfig] | None = None
    """config.json to the contents of generation_config.json, for a family that writes text."""

    def class_name(self, head: Head) -> str:
        """The class of `transformers` that a head is written for."""
        return next(name for name, known in self.architectures.items() if known == head)

    def obstacles(self, config: TransformerConfig, head: Head) -> list[str]:
        """Why a network with this head cannot be written as this family; empty if it can."""
        own = {"activation"} if self.activation_key else set()
        carried = {*self.keys, *self.carried, *own}
        return [*differences(config, head, self.always, carried), *self.problems(config, head)]

    def to_hf(
        self, state_dict: Mapping[str, Tensor], config: TransformerConfig, head: Head, token_ids: TokenIds
    ) -> tuple[Tensors, HfConfig]:
        """Translate a network for `transformers`.

        Only called without `obstacles`, with a state dict that fits; tensors may be on the meta device. The class of
        the network and the names of labels are added to config.json by the caller.

        Returns:
            Tensors, which may share memory with the given ones, and the contents of config.json.
        """
        prefix = self.prefix(head)
        table = [*self.body(config, prefix, token_ids.pad), *self.heads(config, prefix)[head]]
        tensors = to_their_names(table, state_dict)
        activation = ACTIVATION_NAMES[config.activation]
        config_dict = {
            **write_fields(config, self.keys),
            **({self.activation_key: activation} if self.activation_key else {}),
            "model_type": self.model_type,
            **self.write(config, head, token_ids),
        }
        return tensors | self.add(tensors, config, head, prefix), config_dict

    def from_hf(self, tensors: Mapping[str, Tensor], config_dict: Mapping[str, Any]) -> Imported:
        """Translate a network of `transformers` into ours. A separate dropout of classifiers is not kept.

        Raises:
            ValueError: a key asks for a computation that our core lacks; tensors are missing, unexpected or of another
                shape.
        """
        head = self.architectures[config_dict["architectures"][0]]
        assumed = {key: value for key, value in self.keys.values() if value is not ...}
        values = {**assumed, **self.defaults, **config_dict}
        require_keys(values, self.required)
        # More layers than the weights can be of are refused before tables are made of them.
        for key in (self.keys[name][0] for name in ("num_layers", "num_decoder_layers") if name in self.keys):
            if isinstance(values.get(key), int) and values[key] > len(tensors):
                raise ValueError(
                    f"{key} = {values[key]} in config.json, but there are {len(tensors)} tensors"
                )
        prefix = self.prefix(head)
        stored = {name: tensor for name, tensor in tensors.items() if not re.search(self.buffers, name)}
        used = self.prepare(self._aligned(stored, prefix), values, prefix)
        config = self._read_config(values, head, used)
        used = drop_copies(used, self.copies, prefix, tied=config.tie_embeddings)
        heads = self.heads(config, prefix)
        table = [*self.body(config, prefix, values.get("pad_token_id") or 0), *heads[head]]
        foreign = _their_names(*heads.values()) - _their_names(table)
        kept = {name: tensor for name, tensor in used.items() if name not in foreign}
        ours = build_on_meta(config, head, labels_in(table, kept)).state_dict()
        state_dict = import_tensors(table, ours, kept)
        left_out = {name: tensor for name, tensor in used.items() if name not in kept}
        pooler = self.pooler(prefix) if _their_names(self.pooler(prefix)) <= left_out.keys() else []
        return Imported(
            self.name, state_dict, config, head, tuple(sorted(left_out)), to_our_names(pooler, left_out)
        )

    def prefix(self, head: Head) -> str:
        """The beginning of the names of the tensors of a network without its head."""
        return "" if head in self.bare else self.base

    def _aligned(self, tensors: Tensors, prefix: str) -> Tensors:
        """The tensors of a bare network under the names that a network with a head has, or the opposite."""
        if not prefix:
            return {name.removeprefix(self.base): tensor for name, tensor in tensors.items()}
        if any(name.startswith(prefix) for name in tensors):
            return tensors
        of_heads = _their_names(*self.heads(self.always, prefix).values())
        roots = {name.partition(".")[0] for name in (*self.copies, *of_heads)}
        return {
            name if name.partition(".")[0] in roots else f"{prefix}{name}": tensor
            for name, tensor in tensors.items()
        }

    def _read_config(self, values: Mapping[str, Any], head: Head, tensors: Tensors) -> TransformerConfig:
        fields = read_fields(values, self.keys)
        if self.activation_key:
            fields["activation"] = read_activation(values, self.activation_key)
        fields |= self.read(values, head, tensors)
        same = {
            "num_decoder_layers": fields.get("num_layers"),
            "num_key_value_heads": fields.get("num_heads"),
            "attention_head_size": fields["hidden_size"] / (fields["num_heads"] or 1),
            "embedding_size": fields["hidden_size"],
        }
        # A size that follows from another one is left open.
        fields |= {name: None for name, size in same.items() if name in fields and fields[name] == size}
        return replace(self.always, **fields)


def drop_copies(tensors: Tensors, copies: Mapping[str, str], prefix: str, *, tied: bool) -> Tensors:
    """Leave out second names of one tensor. Untied biases stay two, and where a file has only one of them, the other is
    the same.

    Args:
        copies: as in `Family`.

    Raises:
        ValueError: tied tensors differ.
    """
    kept = dict(tensors)
    for copy, original in copies.items():
        original = original.format(prefix)
        if tied and copy in kept:
            stored = kept.pop(copy)
            if not torch.equal(kept.setdefault(original, stored), stored):
                raise ValueError(
                    f"config.json ties {copy} to {original}, but their values differ; set tie_word_embeddings to false "
                    "there if they were trained apart"
                )
        elif not tied and copy.endswith("bias"):
            either = kept.get(copy, kept.get(original))
            if either is not None:
                kept |= {copy: either, original: either}
    return kept


def _their_names(*tables: list[Names]) -> set[str]:
    return {theirs for table in tables for names in table for theirs in names.theirs}
