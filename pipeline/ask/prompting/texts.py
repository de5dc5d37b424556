"""Marks in texts, the special tokens around them, and texts that fit into a network."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers import AddedToken, Tokenizer

from cluster.artefacts.errors import ConfigError, MismatchError
from data_prep.tokenizers.special import NAMES
from pipeline.tune.tokenizer import TextTokenizer

MARK = re.compile(r"\[MASK\]|<mask>|<\|mask\|>|\[z\]|\[Z\]")
"""The ways to write the place to fill, whatever the tokenizer calls its mask."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """A text as token ids, without the special tokens around it."""

    ids: list[int]
    spans: list[tuple[int, int]]
    """Per token the characters of the text that it stands for, from and up to (exclusive)."""


class PromptTokenizer:
    """A `tokenizer.json` that knows masks in texts.

    A space before a mask is part of the hidden word in vocabularies whose tokens begin with their space, and is left
    out there, as in pre-training.
    """

    def __init__(self, path: Path) -> None:
        """
        Raises:
            MissingInputError, CorruptArtefactError, MismatchError: as `TextTokenizer`.
        """
        self.plain = TextTokenizer(path)
        """The tokenizer of fine-tuning: special tokens by role, ids without special tokens."""
        self.path = path
        self._tokenizer = Tokenizer.from_file(str(path))
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.vocab_size = self.plain.vocab_size
        self.special = self.plain.special
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

    def encode(self, text: str) -> Encoded:
        """Token ids; special tokens that the text names become their ids.

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
        found = self._tokenizer.encode(text, add_special_tokens=False)
        return Encoded(found.ids, found.offsets)

    def around(self) -> tuple[list[int], list[int]]:
        """The special tokens that the file itself puts before and after a text, as `transformers` does."""
        bare = self._tokenizer.encode("a", add_special_tokens=False).ids
        ids = self._tokenizer.encode("a", add_special_tokens=True).ids
        first = next((n for n in range(len(ids)) if ids[n : n + len(bare)] == bare), 0)
        return ids[:first], ids[first + len(bare) :]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, special tokens left out."""
        return self._tokenizer.decode(list(ids))

    def decode_after(self, before: Sequence[int], ids: Sequence[int]) -> str:
        """The text of ids as it follows the ids before it, with the space between them, where there is one."""
        first = self.decode(before)
        both = self.decode([*before, *ids])
        return both[len(first) :] if both.startswith(first) else self.decode(ids)

    def token(self, number: int) -> str:
        """A token by itself, readable; its number where the vocabulary has none."""
        shown = self._tokenizer.decode([number], skip_special_tokens=False)
        return shown or self._tokenizer.id_to_token(number) or f"#{number}"

    def id_of(self, token: str) -> int | None:
        """The id of a token; None when the vocabulary lacks it."""
        return self._tokenizer.token_to_id(token)

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
