"""Continuations by decoders, and answers by encoder-decoders."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from cluster.artefacts.errors import ConfigError, MismatchError
from models.generation.config import GenerationConfig
from models.generation.generate import generate
from pipeline.ask.prompting.networks import LanguageModel, require_length
from pipeline.tasks.tokenizer import generation_format

GENERATION_FILES = ("generation_config.json", "config.json")
"""The files of a Hugging Face directory that list its special tokens of generation; the first that does counts."""
DEFAULT_NEW_TOKENS = 50
_TOKEN_SETTINGS = ("decoder_start_token_id", "forced_bos_token_id", "forced_eos_token_id", "eos_token_id")


@dataclass(frozen=True, slots=True)
class Written:
    """A text that a network wrote."""

    text: str
    """The written text, without the prompt."""
    score: float
    """Log-probability of the written tokens in nats, divided by their number ** `length_penalty`."""
    tokens: tuple[int, ...]
    """Ids of the written tokens, the end token included."""


def search_settings(**given: Any) -> GenerationConfig:
    """How to search or sample, from fields of `GenerationConfig`.

    Raises:
        ConfigError: they do not fit together.
    """
    try:
        return GenerationConfig(**given)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"These options do not fit: {error}", next_step="cloze generate --help") from None


def write(
    network: LanguageModel,
    text: str,
    settings: GenerationConfig,
    *,
    language: str | None = None,
    is_chat: bool = False,
) -> list[Written]:
    """Continue a text with a decoder, or answer it with an encoder-decoder.

    A checkpoint of cloze reads a text as in its pre-training, a decoder with `<s>` before it; a Hugging Face directory
    as its tokenizer.json says.

    Args:
        settings: how to search or sample; its special tokens are filled in here. Without `max_new_tokens`, 50 tokens
            are written, or as many as the network has positions for.
        language: language tag of an mBART.
        is_chat: the text comes from `chat_prompt`, with all of its special tokens.

    Returns:
        `num_return_sequences` texts.

    Raises:
        MismatchError: the network fills masks instead, the text is too long, or the vocabulary lacks the language tag.
        ConfigError: a decoder is given no text to continue.
    """
    if network.kind == "masked":
        raise MismatchError(
            f"{network.reference} is a masked language model, which does not write.",
            next_step="let it fill masks: cloze fill",
        )
    is_decoder = network.kind == "left_to_right"
    ids, tokens = _prompt(network, text, language, is_chat)
    if not ids:
        raise ConfigError(
            "There is no text to continue.", next_step="give one word at least: cloze generate TEXT"
        )
    require_length(len(ids) + is_decoder, network.max_length)
    room = network.max_length - (len(ids) if is_decoder else 1)
    limit = settings.max_new_tokens or min(DEFAULT_NEW_TOKENS, room)
    if limit > room:
        raise MismatchError(
            f"{limit} new tokens do not fit after a text of {len(ids)}: the network takes {network.max_length}.",
            next_step=f"--max-new-tokens {room}, or shorten the text",
        )
    config = replace(settings, max_new_tokens=limit, pad_token_id=network.tokenizer.special["pad"], **tokens)
    before = ids if is_decoder else []
    return [
        Written(network.tokenizer.decode_after(before, row), score, tuple(row))
        for row, score in generated(network, ids, config)
    ]


def generated(
    network: LanguageModel, ids: Sequence[int], config: GenerationConfig
) -> list[tuple[list[int], float]]:
    """Generate with a network: the new ids of each text, and its score.

    Raises:
        MismatchError: the network or its generation settings do not allow it.
    """
    rows = torch.tensor([list(ids)], device=network.device)
    try:
        found = generate(network.model, rows, None, config, read_both_ways=network.reads_both_ways)
    except ValueError as error:
        raise MismatchError(
            f"{network.reference} cannot write: {error}",
            next_step="change the settings that the message names, or use another checkpoint",
        ) from None
    return list(zip(found.continuations(), found.scores.tolist(), strict=True))


def chat_prompt(network: LanguageModel, text: str, system: str | None = None) -> str:
    """The prompt that a network responds to, with a user's turn.

    Raises:
        MismatchError: the network has no template, or its template refuses these turns.
    """
    from jinja2 import TemplateError
    from transformers import PreTrainedTokenizerFast

    if network.chat_template is None:
        raise MismatchError(
            f"{network.reference} has no template of conversations.",
            next_step="leave out --chat; or fine-tune on conversations first: cloze finetune"
            f" configs/finetune/instructions.yaml --from {network.reference}",
        )
    turns = [{"role": "user", "content": text}]
    if system is not None:
        turns.insert(0, {"role": "system", "content": system})
    tokens = network.tokenizer
    special = {f"{role}_token": tokens.token(number) for role, number in tokens.special.items()}
    tokenizer: Any = PreTrainedTokenizerFast(tokenizer_object=tokens.with_special_tokens(), **special)
    try:
        # Rendered in a sandbox: a directory may come from a stranger.
        return tokenizer.apply_chat_template(
            turns, chat_template=network.chat_template, tokenize=False, add_generation_prompt=True
        )
    except TemplateError as error:
        raise MismatchError(
            f"The chat_template of {network.reference} refuses these turns: {error}",
            next_step="leave out --system, or correct the template",
        ) from None


def _prompt(
    network: LanguageModel, text: str, language: str | None, is_chat: bool
) -> tuple[list[int], dict[str, Any]]:
    """Ids that a decoder continues, or an encoder reads, and the special tokens of what is written."""
    tokenizer, is_own = network.tokenizer, network.directory is None
    ids = (
        tokenizer.with_special_tokens().encode(text, add_special_tokens=False).ids
        if is_chat
        else tokenizer.encode(text).ids
    )
    tokens: dict[str, Any] = {"eos_token_id": tokenizer.special["eos"]}
    if network.kind == "left_to_right":
        first = [tokenizer.special["bos"]] if is_own else tokenizer.around()[0]
        tokens |= _stored_tokens(network)
        return ids if is_chat else [*first, *ids], {"eos_token_id": tokens["eos_token_id"]}
    layout = generation_format(network.config, tokenizer, language)
    if not is_chat:
        ids = [*layout.source.first, *ids, *layout.source.last]
    forced = layout.target.first[0] if is_own and layout.target.first else None
    tokens |= {"decoder_start_token_id": layout.start, "forced_bos_token_id": forced}
    return ids, tokens | ({} if language else _stored_tokens(network))


def _stored_tokens(network: LanguageModel) -> dict[str, int]:
    """The special tokens that the files of a Hugging Face directory name."""
    if network.directory is None:
        return {}
    for name in GENERATION_FILES:
        try:
            content = json.loads((network.directory / name).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        found = {key: content[key] for key in _TOKEN_SETTINGS if isinstance(content.get(key), int)}
        if found:
            return found
    return {}
