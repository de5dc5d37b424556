"""Whether tasks, network, tokenizer and checkpoint fit together; asked before anything is trained."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from cluster.artefacts.errors import MismatchError
from models.config import NetworkConfig, TransformerConfig
from pipeline.demo.tasks.held_out_sentences import HeldOutTaskConfig
from pipeline.finetune.config import FinetuneConfig
from pipeline.finetune.tasks import TASKS, TaskChoice
from pipeline.finetune.tasks.base import FormName, GenerationTaskConfig, SpanTaskConfig
from pipeline.finetune.tokenizer import TextTokenizer, sequence_format

if TYPE_CHECKING:
    from pipeline.checkpoints.references import PretrainedModel

CARRIERS: Mapping[FormName, tuple[str, ...]] = MappingProxyType(
    {
        "classification": ("encoder", "decoder", "elmo"),
        "spans": ("encoder",),
        "generation": ("encoder_decoder",),
    }
)
"""By form of task, the kinds of network that can carry it."""
PUBLISHED: Mapping[str, str] = MappingProxyType(
    {
        "encoder": "an encoder (BERT, RoBERTa, SpanBERT, ELECTRA)",
        "decoder": "a decoder (GPT)",
        "encoder_decoder": "an encoder-decoder (BART, mBART, T5)",
        "elmo": "ELMo",
    }
)
"""Kinds of network by the systems that people know."""


def check_fit(config: FinetuneConfig, network: NetworkConfig, tokenizer: TextTokenizer) -> None:
    """Refuse what cannot be trained together.

    Raises:
        MismatchError: a task asks for what the network cannot do, or inputs or vocabulary are too large for it.
    """
    for name, task in config.tasks.items():
        _check_carrier(name, task, network)
    if isinstance(network, TransformerConfig) and tokenizer.vocab_size > network.require_vocab_size():
        raise MismatchError(
            f"The tokenizer {tokenizer.path} has {tokenizer.vocab_size} tokens, but the network embeds only"
            f" {network.vocab_size}.",
            next_step="start from the tokenizer that the network was trained with",
        )
    for name, task in config.tasks.items():
        _check_lengths(name, task, config.training_of(name).max_length, network)
        if isinstance(task, SpanTaskConfig):
            _check_windows(name, task, config.training_of(name).max_length, network, tokenizer)


def check_held_out(config: FinetuneConfig, pretrained: PretrainedModel | None) -> None:
    """Refuse tasks made from documents that the checkpoint was trained on.

    Raises:
        MismatchError: names the share of documents that was held out.
    """
    tasks = {n: task for n, task in config.tasks.items() if isinstance(task, HeldOutTaskConfig)}
    if not tasks or pretrained is None or pretrained.step is None:
        return
    from pipeline.checkpoints.checkpoint import read_trainer_state

    trained = read_trainer_state(pretrained.directory).identity["data"]["held_out"]
    for name, task in tasks.items():
        # A smaller share holds out a subset of what a larger one does.
        if task.held_out > trained:
            raise MismatchError(
                f"The task {name} takes {task.held_out} of the documents as held out, but"
                f" {pretrained.reference} was trained on all but {trained} of them.",
                next_step=f"add tasks.{name}.held_out={trained}",
            )


def _check_carrier(name: str, task: TaskChoice, network: NetworkConfig) -> None:
    form = TASKS[task.kind].form
    if network.network not in CARRIERS[form]:
        able = " or ".join(PUBLISHED[kind] for kind in CARRIERS[form])
        raise MismatchError(
            f"The task {name} ({task.kind}) needs {able}, but the network is {PUBLISHED[network.network]}.",
            next_step=f"start from a checkpoint of {able}, or leave the task out",
        )


def _check_lengths(name: str, task: TaskChoice, max_length: int, network: NetworkConfig) -> None:
    # Only learned positions are rows of a table; elsewhere any length has a meaning.
    if not isinstance(network, TransformerConfig) or network.positions != "learned":
        return
    lengths = [("training.max_length", max_length, network.max_positions)]
    if isinstance(task, GenerationTaskConfig):
        # The decoder reads its start before what it writes.
        key = f"tasks.{name}.max_target_length"
        lengths.append((key, task.max_target_length, network.max_positions - 1))
    for key, length, limit in lengths:
        if length > limit:
            raise MismatchError(
                f"The task {name} takes up to {length} tokens, but the network knows only"
                f" {network.max_positions} positions.",
                next_step=f"add {key}={limit}",
            )


def _check_windows(
    name: str, task: SpanTaskConfig, max_length: int, network: NetworkConfig, tokenizer: TextTokenizer
) -> None:
    around = task.max_query_length + sequence_format(network, tokenizer).specials_of_pair
    if max_length <= around:
        raise MismatchError(
            f"The task {name} takes windows of {max_length} tokens, of which the longest question with special tokens"
            f" needs {around}, so that nothing of the passage is seen.",
            next_step=f"raise training.max_length, or lower tasks.{name}.max_query_length",
        )
