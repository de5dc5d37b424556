"""Whether tasks, network and tokenizer fit together; checked before anything is trained."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from cluster.artefacts.errors import MismatchError
from models.config import NetworkConfig, TransformerConfig
from pipeline.tune.config import FinetuneConfig
from pipeline.tune.distillation.teacher import FORMS as DISTILLED_FORMS
from pipeline.tune.tokenizer import TextTokenizer

PUBLISHED: Mapping[str, str] = MappingProxyType(
    {
        "encoder": "an encoder (BERT, RoBERTa, SpanBERT, ELECTRA)",
        "decoder": "a decoder (GPT)",
        "encoder_decoder": "an encoder-decoder (BART, mBART, T5)",
        "elmo": "ELMo",
    }
)
"""Kinds of network with published systems as examples, for messages."""


FEATURE_FORMS = ("classification", "tags")
"""Forms of task that can be trained on frozen features."""


def check_fit(config: FinetuneConfig, network: NetworkConfig, tokenizer: TextTokenizer) -> None:
    """Check that every task can be trained with this network and this tokenizer.

    Raises:
        MismatchError: a task needs another kind of network, or inputs or vocabulary are too large for the network.
    """
    check_network(config, network)
    if isinstance(network, TransformerConfig) and tokenizer.vocab_size > network.require_vocab_size():
        raise MismatchError(
            f"The tokenizer {tokenizer.path} has {tokenizer.vocab_size} tokens, but the network embeds only"
            f" {network.vocab_size}.",
            next_step="start from the tokenizer that the network was trained with",
        )
    for name, task in config.tasks.items():
        task.check_lengths(name, config.training_of(name).max_length, network, tokenizer)


def check_network(config: FinetuneConfig, network: NetworkConfig) -> None:
    """Check that every task can be trained with this kind of network.

    Raises:
        MismatchError: a task needs another kind.
    """
    if config.zero is not None and config.zero.stage == 3 and network.network == "elmo":
        raise MismatchError(
            "zero.stage 3 does not work with ELMo, whose layers are not called one by one.",
            next_step="set zero.stage=2",
        )
    for name, task in config.tasks.items():
        if network.network not in task.carriers:
            able = " or ".join(PUBLISHED[kind] for kind in task.carriers)
            raise MismatchError(
                f"The task {name} ({task.kind}) needs {able}, but the network is {PUBLISHED[network.network]}.",
                next_step=f"start from a checkpoint of {able}, or leave the task out",
            )
        if config.training_of(name).features is not None and task.form not in FEATURE_FORMS:
            raise MismatchError(
                f"The task {name} ({task.kind}) cannot be trained on frozen features: that is for labels and tags.",
                next_step="leave training.features out",
            )
        if config.training_of(name).distill is not None and task.form not in DISTILLED_FORMS:
            raise MismatchError(
                f"The task {name} ({task.kind}) cannot have a teacher: only labels, numbers, tags and spans can.",
                next_step="leave training.distill out",
            )
