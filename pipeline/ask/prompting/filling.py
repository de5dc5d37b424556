"""The tokens at the masks of a text: predicted by a masked language model, or written by an encoder-decoder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from cluster.artefacts.errors import ConfigError, MismatchError
from models.generation.config import GenerationConfig
from pipeline.ask.prompting.networks import LanguageModel, count_marks, require_length
from pipeline.ask.prompting.writing import generated
from pipeline.tasks.tokenizer import generation_format, sequence_format, starts_with_padding

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
    return _FILLERS[network.kind](network, text, top)


@torch.no_grad()
def _predict(network: LanguageModel, text: str, top: int) -> Filling:
    tokenizer = network.tokenizer
    around = sequence_format(network.config, tokenizer)
    inner = tokenizer.encode(tokenizer.with_masks(text)).ids
    ids = [*around.first, *inner, *around.last]
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
    inner = tokenizer.encode(tokenizer.with_masks(text, masks)).ids
    source = [*layout.source.first, *inner, *layout.source.last]
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


def _refuse(network: LanguageModel, text: str, top: int) -> Filling:
    raise MismatchError(
        f"{network.reference} is a decoder, which reads from the left and fills no masks.",
        next_step="let it continue a text: cloze generate; masks are filled by masked language models (BERT,"
        " RoBERTa, an ELECTRA's generator) and encoder-decoders (BART, T5)",
    )


_FILLERS: Mapping[str, Callable[[LanguageModel, str, int], Filling]] = {
    "masked": _predict,
    "encoder_decoder": _write,
    "left_to_right": _refuse,
}
"""By kind of prediction."""
