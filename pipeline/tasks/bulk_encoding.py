"""Ids and characters of many texts at once, equal to those of the tokenizer and several times faster.

Texts of a data set repeat their words. A tokenizer that never looks across white space encodes each different word
once; a byte-level one is encoded by tokie, and the bytes of its tokens show where they lie.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
from tokenizers import Tokenizer

from data_prep.ragged import Ragged
from data_prep.tokenizers.reference import Encoder

Rows = tuple[Ragged, np.ndarray]
"""Token ids of each text, int64, and int64 [tokens, 2]: the characters of each token in its text, from and up to
(exclusive)."""
Bulk = Callable[[Sequence[str]], Rows]

MANY_CHARACTERS, VERY_MANY_CHARACTERS = 100_000, 1_500_000
"""From here on it pays to prepare for words, and for bytes."""
CHECKED_TEXTS, CHECKED_CHARACTERS = 16, 512
"""Texts, and characters of each, that are compared with the tokenizer's own."""
_REMOVED = re.compile("[\x0b\x0c\x1c-\x1f\x85]")
"""Control characters that Python takes for white space and BERT's tokenizers remove."""
_WORDS = re.compile(r"[^\s!-/:-@\[-`{-~]+|[!-/:-@\[-`{-~]")
"""A sign of ASCII, or characters between such signs and white space."""
_SIGN, _SPACE = (
    np.array([bool(re.match(pattern, chr(code))) for code in range(0x3002)])
    for pattern in (r"[!-/:-@\[-`{-~]", r"\s")
)
"""By code point; there is no white space beyond."""
_LINE = 64
"""Words that are encoded as one text."""
_BYTE_SPACE = "\N{LATIN CAPITAL LETTER G WITH DOT ABOVE}"
"""How GPT-2's alphabet writes a space."""


def encode_rows(tokenizer: Tokenizer, texts: Sequence[str]) -> Rows:
    """Encode without special tokens, as `tokenizer` does."""
    size = sum(map(len, texts))
    if size < MANY_CHARACTERS:
        return plainly(tokenizer, texts)
    bulk = bulk_of(tokenizer.to_str(), size >= VERY_MANY_CHARACTERS)
    if bulk is None or _spell_own_tokens(tokenizer, texts) or not _agrees(bulk, tokenizer, texts):
        return plainly(tokenizer, texts)
    return bulk(texts)


def plainly(tokenizer: Tokenizer, texts: Sequence[str]) -> Rows:
    """Encode with the tokenizer itself."""
    found = tokenizer.encode_batch(list(texts), add_special_tokens=False)
    lengths = np.fromiter(map(len, found), dtype=np.int64, count=len(found))
    ids = np.fromiter(chain.from_iterable(each.ids for each in found), dtype=np.int64)
    flat = chain.from_iterable(chain.from_iterable(each.offsets for each in found))
    return Ragged(ids, _offsets(lengths)), np.fromiter(flat, dtype=np.int64).reshape(-1, 2)


def _offsets(lengths: np.ndarray) -> np.ndarray:
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths)])


def _spell_own_tokens(tokenizer: Tokenizer, texts: Sequence[str]) -> bool:
    """Whether texts hold tokens that a tokenizer finds before it cuts words, such as `[SEP]`."""
    own = [re.escape(token.content) for token in tokenizer.get_added_tokens_decoder().values()]
    return bool(own) and re.search("|".join(own), "\n".join(texts), re.IGNORECASE) is not None


def _agrees(bulk: Bulk, tokenizer: Tokenizer, texts: Sequence[str]) -> bool:
    chosen = [text[:CHECKED_CHARACTERS] for text in texts[:: -(-len(texts) // CHECKED_TEXTS)]]
    (ids, places), (right_ids, right_places) = bulk(chosen), plainly(tokenizer, chosen)
    return ids.equals(right_ids) and np.array_equal(places, right_places)


@lru_cache(maxsize=4)
def bulk_of(tokenizer_json: str, very_many: bool) -> Bulk | None:
    """The fast way that fits a tokenizer; None where there is none, or preparing for it takes longer."""
    parts, tokenizer = orjson.loads(tokenizer_json), Tokenizer.from_str(tokenizer_json)
    kinds = [(parts.get(name) or {}).get("type") for name in ("normalizer", "pre_tokenizer", "model")]
    if kinds == ["BertNormalizer", "BertPreTokenizer", "WordPiece"]:
        return _Words(tokenizer, parts)
    if not very_many or kinds[2] != "BPE":
        return None
    from data_prep.tokenizers.fast import is_byte_level, make_fast_encoder

    encoder = make_fast_encoder(tokenizer_json) if is_byte_level(tokenizer_json) else None
    return _Bytes(encoder, parts) if encoder else None


class _Words:
    """For BERT's WordPiece: the tokens of a text are those of its words, one after the other."""

    def __init__(self, tokenizer: Tokenizer, parts: dict[str, Any]) -> None:
        self._tokenizer = tokenizer
        self._lowercase: bool = parts["normalizer"]["lowercase"]

    def __call__(self, texts: Sequence[str]) -> Rows:
        joined = "\n".join([*texts, ""])
        if _REMOVED.search(joined):
            return plainly(self._tokenizer, texts)
        codes = np.frombuffer(joined.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
        if self._lowercase:
            # ASCII alone, which keeps the number of characters.
            codes = codes + 32 * ((codes >= ord("A")) & (codes <= ord("Z"))).astype(np.uint32)
            joined = codes.tobytes().decode("utf-32-le", "surrogatepass")
        words = _WORDS.findall(joined)
        known = np.minimum(codes, len(_SPACE) - 1)
        sign, apart = _SIGN[known], _SIGN[known] | _SPACE[known]
        begins = np.flatnonzero(sign | (~apart & np.concatenate([[True], apart[:-1]])))
        number = {word: place for place, word in enumerate(dict.fromkeys(words))}
        ids, places = self._one_by_one(list(number))
        numbers = np.fromiter(map(number.__getitem__, words), dtype=np.int64, count=len(words))
        tokens = Ragged(np.arange(len(places)), ids.offsets).take(numbers)
        texts_begin = _offsets(np.fromiter((len(text) + 1 for text in texts), np.int64, len(texts)))
        first_words = np.searchsorted(begins, texts_begin)
        inside = begins - np.repeat(texts_begin[:-1], np.diff(first_words))
        return (
            Ragged(ids.values[tokens.values], tokens.offsets[first_words]),
            places[tokens.values] + np.repeat(inside, tokens.lengths)[:, None],
        )

    def _one_by_one(self, words: Sequence[str]) -> Rows:
        """The tokens of each word. Many words are encoded in one text, because every text costs time."""
        lines = [" ".join(words[first : first + _LINE]) for first in range(0, len(words), _LINE)]
        ids, places = plainly(self._tokenizer, lines)
        begins = _offsets(np.fromiter((len(word) + 1 for word in words), np.int64, len(words)))
        places = places + np.repeat(begins[:-1:_LINE], ids.lengths)[:, None]
        owner = np.searchsorted(begins, places[:, 0], "right") - 1
        lengths = np.bincount(owner, minlength=len(words))
        return Ragged(ids.values, _offsets(lengths)), places - begins[owner][:, None]


class _Bytes:
    """For byte-level tokenizers: the bytes of the tokens, joined, are the text's."""

    def __init__(self, encoder: Encoder, parts: dict[str, Any]) -> None:
        from data_prep.tokenizers.fast import token_bytes

        self._encoder = encoder
        self._sizes = token_bytes(parts)
        self._leading, self._trailing = np.zeros((2, len(self._sizes)), dtype=np.int64)
        if _trims_spaces(parts.get("post_processor")):
            for token, number in parts["model"]["vocab"].items():
                self._leading[number] = len(token) - len(token.lstrip(_BYTE_SPACE))
                self._trailing[number] = len(token) - len(token.rstrip(_BYTE_SPACE))

    def __call__(self, texts: Sequence[str]) -> Rows:
        no_cuts = Ragged(np.empty(0, dtype=np.int64), np.zeros(len(texts) + 1, dtype=np.int64))
        ids, _ = self._encoder.encode(pa.array(texts, pa.string()), no_cuts)
        data = np.frombuffer("".join(texts).encode("utf-8", "surrogatepass"), dtype=np.uint8)
        character = np.cumsum((data & 0xC0) != 0x80) - 1
        ends = np.cumsum(self._sizes[ids.values])
        begins = character[ends - self._sizes[ids.values]]
        ends = character[ends - 1] + 1
        begins = np.minimum(begins + self._leading[ids.values], ends)
        ends = np.maximum(ends - self._trailing[ids.values], begins)
        before = _offsets(np.fromiter(map(len, texts), np.int64, len(texts)))[:-1]
        places = np.stack([begins, ends], 1) - np.repeat(before, ids.lengths)[:, None]
        return Ragged(ids.values.astype(np.int64), ids.offsets), places


def _trims_spaces(post_processor: dict[str, Any] | None) -> bool:
    """Whether a token's characters are given without the spaces around them."""
    steps = (post_processor or {}).get("processors", [post_processor or {}])
    return any(step.get("trim_offsets", False) for step in steps)
