"""Any network that predicts tokens, from a reference: masked, from left to right, or an encoder-decoder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn

from cluster.artefacts.errors import ClozeError, MismatchError
from models.config import ElmoConfig, TransformerConfig
from models.language_models import CausalLanguageModel, MaskedLanguageModel, SequenceToSequence
from models.stacks import position_limit
from models.weights import check_tensors
from pipeline.ask.prompting.texts import PromptTokenizer
from pipeline.checkpoint.references import Weights, resolve_model
from pipeline.export.exporting import Source, network_of
from pipeline.tune.reference import RANDOM, resolve_start

if TYPE_CHECKING:
    from pipeline.checkpoint.references import PretrainedModel
from typing import TYPE_CHECKING

import orjson

from cluster.artefacts.storage import contents_of

if TYPE_CHECKING:
    from pipeline.checkpoint.references import PretrainedModel


Kind = Literal["masked", "left_to_right", "encoder_decoder"]
"""How a network predicts tokens."""
_BUILDERS: Mapping[str, tuple[Kind, Callable[[TransformerConfig], nn.Module]]] = {
    "masked_lm": ("masked", MaskedLanguageModel),
    "pretraining": ("masked", MaskedLanguageModel),
    "causal_lm": ("left_to_right", CausalLanguageModel),
    "seq2seq_lm": ("encoder_decoder", SequenceToSequence),
}
"""By head: the kind of prediction, and the network."""
_PAIR_HEAD = "pair_head."
_READ_BOTH_WAYS = ("prefix_lm",)
"""Objectives that train a decoder to read the beginning of a text in both directions."""


@dataclass(frozen=True)
class LanguageModel:
    """A network that predicts tokens, ready to be asked."""

    reference: str
    fingerprint: str
    kind: Kind
    model: Any
    """A MaskedLanguageModel, CausalLanguageModel or SequenceToSequence in evaluation mode."""
    config: TransformerConfig
    tokenizer: PromptTokenizer
    directory: Path | None
    """Of a model that `transformers` can read; None for a checkpoint or scores of cloze."""
    reads_both_ways: bool = False
    """Whether a decoder reads a prompt in both directions."""
    chat_template: str | None = None
    """How conversations are written, in Jinja; None for a network that learned none."""

    @property
    def device(self) -> torch.device:
        """Device of the network."""
        return next(self.model.parameters()).device

    @property
    def max_length(self) -> int:
        """Tokens of the longest sequence. Networks without a table of positions take as many as in pre-training."""
        return position_limit(self.config) or self.config.max_positions


def load_language_model(reference: str, runs_dir: Path, weights: Weights = "model") -> LanguageModel:
    """The network that a reference, or a directory of scores with models, stands for. Of an ELECTRA this is the
    generator, which predicts tokens.

    Raises:
        ReferenceNotFoundError, CorruptCheckpointError, MismatchError: as `resolve_model`; and MismatchError for a
            network that predicts no tokens, or whose weights do not fit.
    """
    is_plain = weights != "model" or reference == RANDOM
    pretrained = None if is_plain else resolve_start(reference, runs_dir)
    pretrained = pretrained or resolve_model(reference, runs_dir, weights)
    if isinstance(pretrained.model, ElmoConfig):
        raise MismatchError(
            f"{pretrained.reference} is an ELMo, which predicts words from one side at a time and fills no masks.",
            next_step="look at its representations: cloze neighbors, cloze probe",
        )
    try:
        source = network_of(pretrained, _part(pretrained))
        kind, model = _build(source, pretrained.reference)
    except ClozeError:
        raise
    except ValueError as error:
        raise MismatchError(
            f"{pretrained.reference} cannot be asked for tokens: {error}",
            next_step="name a checkpoint of pre-training, or a directory that `save_pretrained` wrote",
        ) from None
    config = model.config
    tokenizer = PromptTokenizer(pretrained.tokenizer_path)
    if tokenizer.vocab_size > config.require_vocab_size():
        raise MismatchError(
            f"The tokenizer {tokenizer.path} has {tokenizer.vocab_size} ids, the network {config.vocab_size}.",
            next_step="put the tokenizer there that the network was trained with",
        )
    is_own = pretrained.step is not None or pretrained.weights_file is not None
    return LanguageModel(
        reference=pretrained.reference,
        fingerprint=pretrained.fingerprint,
        kind=kind,
        model=model.eval().to(best_device()),
        config=config,
        tokenizer=tokenizer,
        directory=None if is_own else pretrained.directory,
        reads_both_ways=_reads_both_ways(pretrained),
        chat_template=chat_template_of(pretrained),
    )


def best_device() -> torch.device:
    """The first GPU, where there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _part(pretrained: PretrainedModel) -> str | None:
    """`generator` for a checkpoint of a whole ELECTRA."""
    if pretrained.step is None:
        return None
    return "generator" if _objective(pretrained) == "rtd" else None


def _objective(pretrained: PretrainedModel) -> str | None:
    """The kind of objective that a checkpoint was trained with; None where it is not known."""
    from pipeline.checkpoint.checkpoint import read_trainer_state

    if pretrained.step is None:
        return None
    settings = read_trainer_state(pretrained.directory).identity.get("objective")
    return settings.get("kind") if isinstance(settings, dict) else None


def _reads_both_ways(pretrained: PretrainedModel) -> bool:
    return pretrained.model.network == "decoder" and _objective(pretrained) in _READ_BOTH_WAYS


def _build(source: Source, reference: str) -> tuple[Kind, Any]:
    found = _BUILDERS.get(source.head or "")
    if found is None:
        raise MismatchError(
            f"{reference} has a head of the kind {source.head}, which predicts no tokens.",
            next_step="name a network with a head of the kind masked_lm (BERT, RoBERTa, an ELECTRA's generator),"
            " causal_lm (GPT, LLaMA) or seq2seq_lm (BART, T5)",
        )
    kind, build = found
    assert isinstance(source.config, TransformerConfig)
    with torch.device("meta"):
        model = build(source.config)
    tensors = {name: tensor for name, tensor in source.state_dict.items() if not name.startswith(_PAIR_HEAD)}
    check_tensors(model.state_dict(), tensors, reference)
    if broken := [name for name, tensor in tensors.items() if not bool(tensor.isfinite().all())]:
        raise MismatchError(
            f"{reference} has weights that are not finite: {', '.join(broken[:8])}.",
            next_step="use an earlier checkpoint of the run: cloze checkpoints RUN",
        )
    model.to_empty(device="cpu")
    model.load_state_dict(tensors)
    return kind, model


TEMPLATE_FILE = "chat_template.jinja"
CONFIG_FILE = "tokenizer_config.json"
_DEFAULT = "default"
"""The name that `transformers` gives to the first of several templates."""


def chat_template_of(pretrained: PretrainedModel) -> str | None:
    """The template that a network was trained with, in Jinja; None where it has none.

    Raises:
        CorruptArtefactError: a file of the directory cannot be read.
    """
    if pretrained.weights_file is not None:
        from pipeline.tune.export import chat_template_of, finetuned_network

        place, _, trial = pretrained.reference.rpartition("@")
        return chat_template_of(finetuned_network(Path(place), trial))
    own, config = (pretrained.directory / name for name in (TEMPLATE_FILE, CONFIG_FILE))
    if pretrained.step is not None or not (own.is_file() or config.is_file()):
        return None
    if own.is_file():
        with contents_of(own):
            return own.read_text(encoding="utf-8")
    with contents_of(config):
        found = orjson.loads(config.read_bytes()).get("chat_template")
    if isinstance(found, list):
        found = {each["name"]: each["template"] for each in found}.get(_DEFAULT)
    return found
