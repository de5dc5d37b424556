"""Any network that predicts tokens, from a reference: masked, from left to right, or an encoder-decoder; its tokenizer
and the marks that it knows in texts."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import orjson
import torch
from tokenizers import AddedToken, Encoding
from torch import nn

from cluster.artefacts.errors import ConfigError, MismatchError
from cluster.artefacts.storage import contents_of
from data_prep.tokenizers.special import NAMES
from models.config import ElmoConfig, TransformerConfig
from models.language_models import CausalLanguageModel, MaskedLanguageModel, SequenceToSequence
from models.stacks import position_limit
from models.weights import check_tensors, check_values
from pipeline.checkpoint.references import Weights, resolve_model
from pipeline.export.exporting import network_of
from pipeline.export.formats import Source
from pipeline.tasks.tokenizer import SequenceFormat, TextTokenizer, generation_format, sequence_format
from pipeline.tune.finetuned import RANDOM, finetuned_network, resolve_start

if TYPE_CHECKING:
    from pipeline.checkpoint.references import PretrainedModel

MARK = re.compile(r"\[MASK\]|<mask>|<\|mask\|>|\[z\]|\[Z\]")
"""The ways to write the place to fill, whatever the tokenizer calls its mask."""
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


class PromptTokenizer(TextTokenizer):
    """A `tokenizer.json` that knows masks in texts.

    A space before a mask is part of the hidden word in vocabularies whose tokens begin with their space, and is left
    out there, as in pre-training.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.mask_id = self.special.get("mask")
        self._mask = None if self.mask_id is None else self._tokenizer.id_to_token(self.mask_id)
        if self._mask is not None and self.mask_id not in self._tokenizer.get_added_tokens_decoder():
            self._tokenizer.add_special_tokens([AddedToken(self._mask)])
        self._spaces_are_tokens = bool(self.encode("a ").ids[len(self.encode("a").ids) :])

    @property
    def mask(self) -> str:
        """The mask as the tokenizer writes it.

        Raises:
            MismatchError: it has none.
        """
        if self._mask is None:
            raise MismatchError(
                f"The tokenizer {self.path} has no mask token.",
                next_step=f"use the tokenizer of pre-training, with one under a usual name: {', '.join(NAMES['mask'])}",
            )
        return self._mask

    def encode(self, text: str) -> Encoding:
        """Token ids and their characters, without special tokens around; those that the text names become their ids.

        Raises:
            ConfigError: the text has characters that are no Unicode, such as broken bytes of a terminal.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ConfigError(
                f"Character {error.start} of the text {text.encode(errors='backslashreplace').decode()!r} is no"
                " Unicode character.",
                next_step="give the text in UTF-8",
            ) from None
        return self._tokenizer.encode(text, add_special_tokens=False)

    def begins(self) -> tuple[int, ...]:
        """The special tokens that the file itself puts before a text, as `transformers` does."""
        found = self._tokenizer.encode("a", add_special_tokens=True)
        added = takewhile(lambda pair: pair[1], zip(found.ids, found.special_tokens_mask, strict=True))
        return tuple(number for number, _ in added)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, special tokens left out."""
        return self._tokenizer.decode(list(ids))

    def decode_after(self, before: Sequence[int], ids: Sequence[int]) -> str:
        """The text of ids as it follows the ids before it, with the space between them, where there is one."""
        first = self.decode(before)
        both = self.decode([*before, *ids])
        return both[len(first) :] if both.startswith(first) else self.decode(ids)

    def shown(self, number: int) -> str:
        """A token by itself, readable; its number where the vocabulary has none."""
        shown = self._tokenizer.decode([number], skip_special_tokens=False)
        return shown or self._tokenizer.id_to_token(number) or f"#{number}"

    def before_mask(self, text: str) -> str:
        """The text before a mask, without the space that belongs to the hidden word."""
        return text[:-1] if self._spaces_are_tokens and text.endswith(" ") else text

    def with_masks(self, text: str, masks: Sequence[str] | None = None) -> str:
        """The text with the tokenizer's own mask, or with `masks` one after the other, at every mark."""
        parts = MARK.split(text)
        own = list(masks) if masks is not None else [self.mask] * (len(parts) - 1)
        pieces = [self.before_mask(part) + mask for part, mask in zip(parts, own, strict=False)]
        return "".join([*pieces, parts[-1]])


def count_marks(text: str) -> int:
    """Places to fill in a text."""
    return len(MARK.findall(text))


def require_length(length: int, limit: int) -> None:
    """
    Raises:
        MismatchError: a sequence is longer than the network's positions.
    """
    if length > limit:
        raise MismatchError(
            f"The text has {length} tokens with its special tokens, and the network takes {limit}.",
            next_step="shorten the text",
        )


@dataclass(frozen=True)
class LanguageModel:
    """A network that predicts tokens, ready to be asked."""

    reference: str
    kind: Kind
    model: Any
    """A MaskedLanguageModel, CausalLanguageModel or SequenceToSequence in evaluation mode."""
    config: TransformerConfig
    tokenizer: PromptTokenizer
    directory: Path | None
    """Directory of a model that `transformers` can read; None for a checkpoint or scores of cloze."""
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

    def around(self, language: str | None = None) -> SequenceFormat:
        """The special tokens around a text that the network reads: those of pre-training, but a decoder in a Hugging
        Face directory begins a text as its tokenizer.json does.

        Args:
            language: language tag of an mBART.

        Raises:
            MismatchError: the vocabulary lacks the language tag.
        """
        if self.kind == "masked":
            return sequence_format(self.config, self.tokenizer)
        if self.kind == "encoder_decoder":
            return generation_format(self.config, self.tokenizer, language).source
        bos = self.tokenizer.special["bos"]
        first = self.tokenizer.begins() if self.directory else (bos,)
        return SequenceFormat(first, (), ())

    def read(self, text: str, language: str | None = None) -> list[int]:
        """The ids of a text with the special tokens `around` it."""
        around = self.around(language)
        return [*around.first, *self.tokenizer.encode(text).ids, *around.last]


def load_language_model(reference: str, runs_dir: Path, weights: Weights = "model") -> LanguageModel:
    """The network of a reference, or of a directory of scores with models; the generator of an ELECTRA, because it
    predicts tokens.

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
    # The kind of objective that a checkpoint was trained with; None where it is not known.
    objective = None
    if pretrained.step is not None:
        from pipeline.checkpoint.checkpoint import read_trainer_state

        settings = read_trainer_state(pretrained.directory).identity.get("objective")
        objective = settings.get("kind") if isinstance(settings, dict) else None
    try:
        source = network_of(pretrained, "generator" if objective == "rtd" else None)
        kind, model = _build(source, pretrained.reference)
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
        kind=kind,
        model=model.eval().to("cuda" if torch.cuda.is_available() else "cpu"),
        config=config,
        tokenizer=tokenizer,
        directory=None if is_own else pretrained.directory,
        reads_both_ways=pretrained.model.network == "decoder" and objective == "prefix_lm",
        chat_template=_chat_template(pretrained),
    )


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
    check_values(tensors, f"the weights of {reference}")
    model.to_empty(device="cpu")
    model.load_state_dict(tensors)
    return kind, model


def _chat_template(pretrained: PretrainedModel) -> str | None:
    """The template that a network was trained with, in Jinja; None where it has none."""
    if pretrained.weights_file is not None:
        place, _, trial = pretrained.reference.rpartition("@")
        found = finetuned_network(Path(place), trial)
        return found.task().chat_template(found.network)
    own, config = (pretrained.directory / name for name in ("chat_template.jinja", "tokenizer_config.json"))
    if pretrained.step is not None or not (own.is_file() or config.is_file()):
        return None
    if own.is_file():
        with contents_of(own):
            return own.read_text(encoding="utf-8")
    with contents_of(config):
        found = orjson.loads(config.read_bytes()).get("chat_template")
    if isinstance(found, list):
        # The name that `transformers` gives to the first of several templates.
        found = {each["name"]: each["template"] for each in found}.get("default")
    return found
