"""Tokenizers that are trained, whatever the kind, on texts without words that are too long for a trainer: one of a
million letters would take it hours, and teach it nothing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Annotated, ClassVar

import numpy as np
import regex
from pydantic import BaseModel, ConfigDict, Field, field_validator

LETTERS_OR_DIGITS = (r"\p{L}", r"\p{N}", r"\s", r"[^\s\p{L}\p{N}]")
"""GPT-2's words (Radford et al. 2019) are runs of one of these."""
NO_PUNCTUATION = (r"[^\s\p{P}]",)
"""BERT's words are runs of this."""
NO_SPACE = (r"[!-~]", r"\s", r"(?![!-~])\p{L}", r"(?![!-~\s])\P{L}")
"""SentencePiece's words lie between spaces; letters beyond ASCII are runs for themselves, because in scripts without
spaces a word may be a paragraph."""
BETWEEN_SPACES = (r"\S",)
"""All that the cost of SentencePiece's training looks at: it grows with the square of what lies between two spaces."""
PARTS = 16
"""Parts of a long word that are trained on; more of them would teach nothing but this word."""


class TrainedTokenizer(BaseModel, ABC):
    """Settings of a tokenizer that is trained on the corpus; a subclass narrows `kind` to its own name and trains."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: str
    vocab_size: int = Field(default=32_768, ge=512, le=1 << 20)
    """Entries of the vocabulary, special tokens and bytes included. Up to 65,536, tokens are stored in two bytes
    each."""
    train_bytes: int = Field(default=256 << 20, gt=0)
    """Train on about this many bytes of text, drawn from the corpus a document at a time."""
    weights: dict[str, Annotated[float, Field(ge=0)]] | None = None
    """Share of the training text that each source (by its name) gives, relative to the others. By default a source
    gives as much as its size."""
    alpha: float = Field(default=1.0, ge=0, le=1)
    """Temperature over languages: a language with the share q of the text gives a share proportional to
    q^alpha. 1 keeps the shares, 0.7 is XLM's and mBART's, 0 makes all languages equal. What a small language lacks
    is made up for by taking its documents more than once."""

    max_word_characters: int = Field(default=256, ge=16)
    """Longer words (characters), such as DNA, base64 or a rule of equals signs, are cut for training, and the first 16
    parts are trained on: the time of trainers grows with the square of a word's length. Encoding takes every word as
    it is. (In 182 million characters of articles and novels no word is longer.)"""

    words: ClassVar[tuple[str, ...]] = ()
    """Kinds of characters whose runs are the words of the trainer; empty where long words cost it nothing."""

    @field_validator("weights")
    @classmethod
    def _some_weight(cls, weights: dict[str, float] | None) -> dict[str, float] | None:
        if weights is not None and not sum(weights.values()) > 0:
            raise ValueError("at least one source needs a weight above 0")
        return weights

    @abstractmethod
    def train(self, texts: Iterable[str]) -> tuple[str, Mapping[str, int]]:
        """Train on texts, cut by `limited`.

        Returns:
            The `tokenizer.json`, the same bytes for the same texts, and counts for the statistics.
        """


def limited(texts: Iterable[str], wanted: TrainedTokenizer) -> Iterator[str]:
    """The texts as the trainer of the kind gets them: without words that are too long for it."""
    if not wanted.words:
        return iter(texts)
    cut = cut_long_words(texts, wanted.words, wanted.max_word_characters)
    if wanted.words is not NO_SPACE:
        return cut
    # Paragraphs of scripts without spaces are text to learn from: all their parts stay.
    return cut_long_words(cut, BETWEEN_SPACES, wanted.max_word_characters, parts=None)


def cut_long_words(
    texts: Iterable[str], runs: tuple[str, ...], max_characters: int, parts: int | None = PARTS
) -> Iterator[str]:
    """Cut longer runs into parts, keep the first `parts` of each, and end a text after every part.

    Args:
        runs: kinds of characters, as regular expressions of one character; a run is of one kind.
        parts: how many parts of a run stay; None for all.
    """
    kinds = _kinds(runs)
    for text in texts:
        start = 0
        for first, last in _long_runs(text, kinds, max_characters):
            end = last if parts is None else min(last, first + parts * max_characters)
            for place in range(first + max_characters, end, max_characters):
                yield text[start:place]
                start = place
            if end < last:
                yield text[start:end]
                start = last
        yield text[start:]


def _long_runs(text: str, kinds: np.ndarray, max_characters: int) -> Iterator[tuple[int, int]]:
    """Starts and ends of runs of more characters."""
    if len(text) > max_characters:
        own = kinds[np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")]
        bounds = np.concatenate([[0], np.flatnonzero(own[1:] != own[:-1]) + 1, [len(own)]])
        for run in np.flatnonzero((np.diff(bounds) > max_characters) & (own[bounds[:-1]] > 0)).tolist():
            yield int(bounds[run]), int(bounds[run + 1])


@cache
def _kinds(runs: tuple[str, ...]) -> np.ndarray:
    """[code points] uint8: the number of each one's kind, counted from 1; 0 for characters of none."""
    # Lone surrogates are no characters; U+FFFF keeps the numbering.
    every = "".join(chr(n) if not 0xD800 <= n < 0xE000 else "\uffff" for n in range(0x110000))
    kinds = np.zeros(len(every), dtype=np.uint8)
    for number, pattern in enumerate(runs, start=1):
        for match in regex.finditer(rf"(?:{pattern})+", every):
            kinds[match.start() : match.end()] = number
    return kinds
