"""The vocabulary as objectives see it: special tokens by role, where words begin, and tokens appended for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import orjson

_SPACES = ("Ġ", "▁", "Ċ", "ĉ", "č")
"""The first characters of tokens that begin a word: a space in GPT-2's alphabet and in SentencePiece's, and GPT-2's
line feed, tab and carriage return."""


_MOST_IDS = 1 << 24
"""Far more than any published vocabulary; larger ids would only take memory."""
ROLES_OF_EXTRA_TOKENS = {"<mask>": "mask", "<pad>": "pad"}
"""Tokens that are appended for a role that the tokenizer has no token for."""


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """The properties of tokens that objectives use."""

    size: int
    """Ids, with those that were appended."""
    roles: Mapping[str, int]
    """Ids of `bos`, `pad`, `eos`, `unk` and `mask`, as far as there are; and of `extra_tokens`, by their text."""
    is_special: np.ndarray
    """[size] bool: tokens that are never predicted and never drawn at random."""
    starts_word: np.ndarray
    """[size] bool: tokens that begin a word; true for special tokens."""
    tokenizer_json: str
    """The tokenizer with the appended tokens."""

    @cached_property
    def ordinary(self) -> np.ndarray:
        """int64 ids that are not special, ascending: what random tokens are drawn from."""
        return np.flatnonzero(~self.is_special)

    def enlarged(self, size: int) -> Vocabulary:
        """The same for a network with more ids; those beyond count as special."""
        padded = np.ones(size, dtype=bool)
        special, starts = padded.copy(), padded.copy()
        special[: self.size], starts[: self.size] = self.is_special, self.starts_word
        return replace(self, size=size, is_special=special, starts_word=starts)

    def __getitem__(self, role: str) -> int:
        """The id of a role, or of an appended token."""
        return self.roles[role]


def make_vocabulary(
    tokenizer_json: str,
    roles: Mapping[str, int],
    extra_tokens: Sequence[str] = (),
    *,
    size: int | None = None,
) -> Vocabulary:
    """Read what objectives need from a `tokenizer.json`, and append the tokens that it lacks.

    Args:
        roles: ids by role, as a token store knows them.
        extra_tokens: texts; those that the tokenizer has keep their ids, others get the next free ones. `<mask>`
            and `<pad>` are the roles `mask` and `pad`, whatever their names in the tokenizer.
        size: ids of the network, where it is to be larger than the vocabulary.

    Raises:
        ValueError: an id is larger than any network has.
    """
    parts: dict[str, Any] = orjson.loads(tokenizer_json)
    ids = parts["model"]["vocab"]
    if isinstance(ids, list):  # SentencePiece's unigram model: [text, score] in the order of ids
        ids = {entry[0]: number for number, entry in enumerate(ids)}
    ids = {**ids, **{token["content"]: token["id"] for token in parts.get("added_tokens") or ()}}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    known = {**roles}
    for text in extra_tokens:
        role = ROLES_OF_EXTRA_TOKENS.get(text, text)
        if role in known:
            continue
        if text not in ids:
            ids[text] = max(ids.values()) + 1
            added = {"id": ids[text], "content": text, **flags, "special": True}
            parts.setdefault("added_tokens", []).append(added)
        known[role] = ids[text]
    size = max(size or 0, max(ids.values()) + 1)
    if size > _MOST_IDS:
        raise ValueError(f"its ids go up to {size - 1}, and {_MOST_IDS} are the most that a network has")
    special = {*known.values(), *(token["id"] for token in parts.get("added_tokens", ()) if token["special"])}
    is_special = np.ones(size, dtype=bool)
    is_special[list(ids.values())] = False
    is_special[sorted(special)] = True
    return Vocabulary(
        size=size,
        roles=known,
        is_special=is_special,
        starts_word=_starts_word(parts, ids, size) | is_special,
        tokenizer_json=orjson.dumps(parts, option=orjson.OPT_INDENT_2).decode(),
    )


def _starts_word(parts: dict[str, Any], ids: Mapping[str, int], size: int) -> np.ndarray:
    """Find the tokens that begin a word: all but those marked as continuing in WordPiece, those with a space before
    elsewhere.

    As in RoBERTa's released code, punctuation belongs to the word before it, except in WordPiece.
    """
    starts = np.zeros(size, dtype=bool)
    prefix = parts["model"].get("continuing_subword_prefix")
    if prefix:
        starts[[number for text, number in ids.items() if not text.startswith(prefix)]] = True
        return starts
    if parts["model"]["type"] == "WordLevel":
        starts[list(ids.values())] = True
        return starts
    starts[[number for text, number in ids.items() if text.startswith(_SPACES)]] = True
    return starts
