"""Texts that a network writes: continuations by decoders, answers by encoder-decoders, and the tokens at the masks of a
text, predicted by a masked language model or written by an encoder-decoder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from cluster.artefacts.errors import ConfigError, MismatchError
from models.generation.config import GenerationConfig
from models.generation.generate import generate
from pipeline.ask.prompting.networks import LanguageModel, count_marks, require_length
from pipeline.tasks.tokenizer import generation_format, starts_with_padding

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
    text: str | Sequence[int],
    settings: GenerationConfig,
    *,
    language: str | None = None,
) -> list[Written]:
    """Continue a text with a decoder, or answer it with an encoder-decoder.

    A checkpoint of cloze reads a text as in its pre-training, a decoder with `<s>` before it; a Hugging Face directory
    as its tokenizer.json says.

    Args:
        text: the text, or the ids of `chat_prompt`.
        settings: how to search or sample; its special tokens are filled in here. Without `max_new_tokens`, 50 tokens
            are written, or as many as the network has positions for.
        language: language tag of an mBART.

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
    ids = network.read(text, language) if isinstance(text, str) else list(text)
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
    config = replace(settings, max_new_tokens=limit, **_special_tokens(network, language))
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


def chat_prompt(network: LanguageModel, text: str, system: str | None = None) -> list[int]:
    """The ids of the prompt that a network responds to, with a user's turn.

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
            turns, chat_template=network.chat_template, add_generation_prompt=True, return_dict=False
        )
    except TemplateError as error:
        raise MismatchError(
            f"The chat_template of {network.reference} refuses these turns: {error}",
            next_step="leave out --system, or correct the template",
        ) from None


def _special_tokens(network: LanguageModel, language: str | None) -> dict[str, Any]:
    """The special tokens of what is written, as settings of a search."""
    special = network.tokenizer.special
    tokens: dict[str, Any] = {"pad_token_id": special["pad"], "eos_token_id": special["eos"]}
    stored = _stored_tokens(network)
    if network.kind == "left_to_right":
        return tokens | {name: number for name, number in stored.items() if name == "eos_token_id"}
    layout = generation_format(network.config, network.tokenizer, language)
    forced = layout.target.first[0] if layout.target.first and network.directory is None else None
    tokens |= {"decoder_start_token_id": layout.start, "forced_bos_token_id": forced}
    return tokens if language else tokens | stored


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


MOST_TEXTS = 64
"""Texts that an encoder-decoder writes at most."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """A token at a mask."""

    token: int
    text: str
    score: float
    """Its probability."""


@dataclass(frozen=True, slots=True)
class Filled:
    """A text without its masks."""

    text: str
    score: float
    """For a masked language model the probability of all tokens, each predicted with those before it filled in; for an
    encoder-decoder the mean log-probability of the written tokens, in nats."""
    parts: tuple[str, ...] = ()
    """The text at each mask."""


@dataclass(frozen=True, slots=True)
class Filling:
    """The answer of a network to a text with masks."""

    masks: tuple[tuple[Prediction, ...], ...]
    """Per mask its most probable tokens, where all masks are hidden; empty for an encoder-decoder, which writes texts
    of any length."""
    texts: tuple[Filled, ...]
    """The text filled in, best first: with a single mask by each of its tokens, with several from left to right by the
    most probable token."""


def fill(network: LanguageModel, text: str, top: int = 5) -> Filling:
    """Predict the tokens at the masks of a text.

    Args:
        text: with `[MASK]`, `<mask>` or `[z]` at least once.
        top: predictions per mask, or texts.

    Raises:
        ConfigError: there is no mask in the text.
        MismatchError: the network is a decoder, or the text is too long for it.
    """
    if not count_marks(text):
        raise ConfigError(
            "There is no mask in the text.", next_step="write [MASK], <mask> or [z] where a word is missing"
        )
    if network.kind == "left_to_right":
        raise MismatchError(
            f"{network.reference} is a decoder, which reads from the left and fills no masks.",
            next_step="let it continue a text: cloze generate; masks are filled by masked language models (BERT,"
            " RoBERTa, an ELECTRA's generator) and encoder-decoders (BART, T5)",
        )
    return (_predict if network.kind == "masked" else _write)(network, text, top)


@torch.no_grad()
def _predict(network: LanguageModel, text: str, top: int) -> Filling:
    tokenizer = network.tokenizer
    ids = network.read(tokenizer.with_masks(text))
    require_length(len(ids), network.max_length)
    places = [place for place, token in enumerate(ids) if token == tokenizer.mask_id]
    scores = _probabilities(network, ids, places)
    best = scores.topk(min(top, scores.shape[1]))
    masks = tuple(
        tuple(
            Prediction(token, tokenizer.shown(token), score) for token, score in zip(tokens, row, strict=True)
        )
        for tokens, row in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    )
    if len(places) > 1:
        return Filling(masks, (_from_left_to_right(network, ids, places),))
    texts = [
        Filled(_decoded(network, ids, places, [found.token]), found.score, (found.text,))
        for found in masks[0]
    ]
    return Filling(masks, tuple(texts))


def _from_left_to_right(network: LanguageModel, ids: list[int], places: list[int]) -> Filled:
    """Fill mask after mask with the most probable token, which the next ones see."""
    filled, score, tokens = list(ids), 1.0, []
    for place in places:
        best = _probabilities(network, filled, [place])[0].max(0)
        filled[place] = int(best.indices)
        tokens.append(filled[place])
        score *= float(best.values)
    return Filled(
        _decoded(network, ids, places, tokens),
        score,
        tuple(network.tokenizer.shown(token) for token in tokens),
    )


def _probabilities(network: LanguageModel, ids: list[int], places: list[int]) -> torch.Tensor:
    """float32 [places, vocab_size]."""
    rows = torch.tensor([ids], device=network.device)
    return network.model.logits(rows)[0, places].float().softmax(-1).cpu()


def _decoded(network: LanguageModel, ids: list[int], places: list[int], tokens: list[int]) -> str:
    filled = list(ids)
    for place, token in zip(places, tokens, strict=True):
        filled[place] = token
    return network.tokenizer.decode(filled)


def _write(network: LanguageModel, text: str, top: int) -> Filling:
    """BART writes the whole text again (Lewis et al. 2020, section 2.2); T5 writes the text of each sentinel (Raffel
    et al. 2020, section 3.1.4)."""
    if top > MOST_TEXTS:
        raise ConfigError(
            f"{network.reference} writes whole texts, and {top} at once are too many.",
            next_step=f"--top {MOST_TEXTS} at most",
        )
    tokenizer, count = network.tokenizer, count_marks(text)
    layout = generation_format(network.config, tokenizer, None)
    with_sentinels = starts_with_padding(network.config)
    masks = [f"<extra_id_{n}>" for n in range(count)] if with_sentinels else [tokenizer.mask] * count
    if with_sentinels and (missing := [name for name in masks if tokenizer.id_of(name) is None]):
        raise MismatchError(
            f"The text has {count} masks, and the tokenizer {tokenizer.path} has no {missing[0]} for them.",
            next_step="use fewer masks, or the tokenizer that the network was trained with",
        )
    source = network.read(tokenizer.with_masks(text, masks))
    require_length(len(source), network.max_length)
    config = GenerationConfig(
        max_new_tokens=min(network.max_length - 1, 16 * count + 8 if with_sentinels else len(source) + 16),
        num_beams=max(top, 4),
        num_return_sequences=top,
        decoder_start_token_id=layout.start,
        eos_token_id=tokenizer.special["eos"],
        pad_token_id=tokenizer.special["pad"],
        forced_bos_token_id=layout.target.first[0] if layout.target.first else None,
    )
    rows = generated(network, source, config)
    if not with_sentinels:
        return Filling((), tuple(Filled(tokenizer.decode(row).strip(), score) for row, score in rows))
    return Filling((), tuple(_filled_sentinels(network, text, row, masks, score) for row, score in rows))


def _filled_sentinels(
    network: LanguageModel, text: str, row: list[int], sentinels: list[str], score: float
) -> Filled:
    """The text with what was written after each of its sentinels."""
    tokenizer = network.tokenizer
    numbers = {tokenizer.id_of(name): number for number, name in enumerate(sentinels)}
    parts: list[list[int]] = [[] for _ in sentinels]
    place = None
    for token in row:
        shown = tokenizer.shown(token)
        if token in numbers or shown.startswith("<extra_id_"):
            place = numbers.get(token)
        elif place is not None:
            parts[place].append(token)
    written = tuple(tokenizer.decode(part).strip() for part in parts)
    pieces = network.tokenizer.with_masks(text, [f" {part}" if part else "" for part in written])
    return Filled(" ".join(pieces.split()), score, written)
