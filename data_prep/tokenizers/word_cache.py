"""Bulk encoding with tokenizers that never look across white space: every word is encoded once and then looked up.

So it is for BERT's WordPiece, for SentencePiece with the usual settings, and for word lexicons. Texts are cut into
words as UTF-8 bytes, by what the tokenizer makes of each character; words that were never seen before are encoded by
a compiled model (`segmenters.py`) or by Hugging Face tokenizers.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from data_prep.ragged import Ragged
from data_prep.tokenizers.characters import MARK, PROBE, Characters
from data_prep.tokenizers.lookup_kernel import (
    BY_REFERENCE,
    ODD,
    UNKNOWN_END,
    count_tokens,
    gather_ids,
    tokens_before,
)
from data_prep.tokenizers.reference import ReferenceEncoder, first_tokens
from data_prep.tokenizers.segmenters import make_segmenter
from data_prep.tokenizers.word_table import NO_WORD, Found, WordTable

if TYPE_CHECKING:
    import pyarrow as pa

CACHE_BYTES = 256 << 20
"""Approximate size of the cache; a larger cache is emptied."""
_RUN_BYTES = 1 << 20
"""Texts are encoded in runs of about this size, whose arrays stay in the processor's caches."""
_COLLAPSED = [
    {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "},
    {"type": "Replace", "pattern": {"Regex": r"\A "}, "content": ""},
    {"type": "Replace", "pattern": {"Regex": rf"[ {MARK}]+\z"}, "content": ""},
    {"type": "Replace", "pattern": {"String": " "}, "content": MARK},
    {"type": "Prepend", "prepend": MARK},
]
"""How `sentencepiece_conversion.py` says that every word begins with one mark, whatever white space is around it."""


class WordCacheEncoder:
    """Encodes by looking words up. What depends on more than a word is left to the reference, with its neighbours."""

    name = "word_cache"

    def __init__(self, tokenizer_json: str, cache_bytes: int = CACHE_BYTES) -> None:
        self._reference = ReferenceEncoder(tokenizer_json)
        # As Hugging Face tokenizers has read it: its scores differ in the last bit, which decides between equals.
        parts = orjson.loads(self._reference.tokenizer.to_str())
        steps = _normalizers(parts)
        self._by_grapheme = any(step["type"] == "Precompiled" for step in steps)
        self._characters = Characters(self._reference.tokenizer, frozenset(step["type"] for step in steps))
        self._segmenter = make_segmenter(parts, self._characters)
        self._cache_bytes = cache_bytes
        self._table = WordTable()

    def encode(self, texts: pa.Array, cuts: Ragged) -> tuple[Ragged, Ragged]:
        text = Ragged.of_strings(texts)
        runs = text.offsets[1:] // _RUN_BYTES
        bounds = np.flatnonzero(np.diff(runs, prepend=-1, append=-1)).tolist()
        encoded = [
            self._encode(text.between(first, last), cuts.between(first, last))
            for first, last in pairwise(bounds)
        ]
        return Ragged.join([ids for ids, _ in encoded]), Ragged.join([starts for _, starts in encoded])

    def _encode(self, text: Ragged, cuts: Ragged) -> tuple[Ragged, Ragged]:
        if self._table.num_bytes > self._cache_bytes:
            self._table = WordTable()
        self._characters.learn(text.values)
        found = self._table.find(text, self._characters.properties)
        self._learn()
        owners = self._encode_odd_words(text, found)
        table = self._table
        begins = np.empty(len(found.numbers) + 1, dtype=np.int64)
        values = np.empty(count_tokens(found.numbers, table.token_offsets, begins), dtype=np.uint32)
        gather_ids(found.numbers, table.token_offsets, table.tokens, values)
        ids = Ragged(values, begins[found.first_words])
        places = cuts.values + text.offsets[cuts.row_of]
        return ids, first_tokens(ids, self._tokens_at(places, text, found, owners, begins))

    def _learn(self) -> None:
        """Encode the words that are new in the table."""
        table = self._table
        first, last = table.num_encoded, table.num_words
        flags, key_offsets = table.flags[first:last], table.key_offsets[first : last + 1]
        if self._segmenter is None:
            left = np.flatnonzero(flags & ODD == 0)
            tokens = Ragged(np.empty((0, 2), dtype=np.uint32), np.zeros(last - first + 1, dtype=np.int64))
        else:
            left = np.flatnonzero(flags == BY_REFERENCE)
            tokens = self._segmenter.encode(table.keys, key_offsets, flags)
        if len(left):
            tokens = tokens.replaced(left, self._by_reference([table.word(first + n) for n in left.tolist()]))
        table.append(tokens)

    def _by_reference(self, words: list[str]) -> Ragged:
        """Per word [tokens, 2] uint32: ids, with ends that are not known."""
        encodings = self._reference.tokenizer.encode_batch(words, add_special_tokens=False)
        ids = [encoding.ids for encoding in encodings]
        lengths = np.fromiter(map(len, ids), dtype=np.int64, count=len(ids))
        tokens = np.full((int(lengths.sum()), 2), UNKNOWN_END, dtype=np.uint32)
        tokens[:, 0] = np.fromiter(chain.from_iterable(ids), dtype=np.uint32, count=len(tokens))
        return Ragged(tokens, np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths)]))

    def _encode_odd_words(self, text: Ragged, found: Found) -> np.ndarray:
        """Encode words that have to do with the space beside them together with the words beside them, in place: all
        tokens become those of the first of these words, the others have none.

        Returns:
            [words + 1] int64: the word that has the tokens of each.
        """
        owners = np.arange(len(found.numbers) + 1)
        odd = np.flatnonzero(self._table.flags[found.numbers] & ODD)
        rows = np.searchsorted(found.first_words, odd, side="right") - 1
        if self._by_grapheme:
            # Where nothing is left of the first character of a text, Hugging Face tokenizers shifts all offsets.
            rows = np.append(rows, np.flatnonzero(found.begins_loose & (np.diff(found.first_words) > 0)))
        for row in np.unique(rows).tolist():
            first, last = found.first_words[row : row + 2].tolist()
            own = odd[(odd >= first) & (odd < last)].tolist()
            whole = self._by_grapheme and found.begins_loose[row]
            for start, stop in [(first, last)] if whole else _spans(own, first, last):
                begin = text.offsets[row] if start == first else found.starts[start]
                end = text.offsets[row + 1] if stop == last else found.ends[stop - 1]
                piece = text.values[begin:end].tobytes().decode("utf-8")
                tokens = self._with_ends(piece, begins_text=start == first)
                found.numbers[start:stop] = NO_WORD
                found.numbers[start] = self._table.add_unnamed(tokens)
                found.starts[start] = begin
                owners[start:stop] = start
        return owners

    def _with_ends(self, text: str, *, begins_text: bool) -> np.ndarray:
        """[tokens, 2] uint32: ids and ends of a part of a text that begins and ends between words."""
        if begins_text:
            return np.stack(self._reference.encode_with_ends(text), 1)
        ahead, _ = self._reference.encode_with_ends(PROBE)
        ids, ends = self._reference.encode_with_ends(f"{PROBE} {text}")
        begin = np.uint32(len(f"{PROBE} ".encode()))
        return np.stack([ids, np.maximum(ends, begin) - begin], 1)[len(ahead) :]

    def _tokens_at(
        self, places: np.ndarray, text: Ragged, found: Found, owners: np.ndarray, begins: np.ndarray
    ) -> np.ndarray:
        """[places] int64: the first token that reaches beyond each place in the texts; the first of a later text, or
        the number of all tokens, where none of its own text does."""
        words = owners[np.searchsorted(found.ends, places, side="right")]
        tokens = begins[words]
        inside = places - np.append(found.starts, len(text.values) + 1)[words]
        if self._by_grapheme:
            # Of a line end that is one grapheme the first character alone is the space that a mark stands for.
            inside += (inside == -1) & (text.values[places - 1] == ord("\r"))
        is_inside = inside > 0
        if self._characters.marks_spaces:
            # The last space belongs to the word behind it, unless it is at the start of the text.
            is_inside |= (inside == 0) & ~np.isin(words, found.first_words)
        within = np.flatnonzero(is_inside)
        numbers = found.numbers[words[within]]
        before = np.empty(len(within), dtype=np.int64)
        table = self._table
        tokens_before(numbers, inside[within], table.token_offsets, table.tokens, before)
        tokens[within] += before
        for word in np.unique(words[within[before < 0]]).tolist():
            own = within[words[within] == word]
            tokens[own] = begins[word] + self._before(word, inside[own], text, found)
        return tokens

    def _before(self, word: int, inside: np.ndarray, text: Ragged, found: Found) -> np.ndarray:
        """[places] int64: the tokens of a word that end at or before places inside it, by the reference."""
        start, end = int(found.starts[word]), int(found.ends[word])
        places = start + inside
        row = int(np.searchsorted(found.first_words, word, side="right")) - 1
        begins_text = word == found.first_words[row]
        if begins_text:
            start = int(text.offsets[row])
        tokens = self._with_ends(text.values[start:end].tobytes().decode("utf-8"), begins_text=begins_text)
        return np.searchsorted(tokens[:, 1], places - start, side="right")


def _spans(odd: list[int], first: int, last: int) -> Iterator[tuple[int, int]]:
    """Words from `first` to before `last` that are odd with those beside them, where spans that overlap are joined."""
    start, stop = -1, -1
    for word in odd:
        if max(first, word - 1) >= stop:
            if stop >= 0:
                yield start, stop
            start = max(first, word - 1)
        stop = min(last, word + 2)
    yield start, stop


def encodes_words_apart(tokenizer_json: str) -> bool:
    """Whether the ids of a text are the ids of its white-space separated words, concatenated."""
    parts = orjson.loads(tokenizer_json)
    pre_tokenizer = parts.get("pre_tokenizer") or {}
    normalizes = _normalizers(parts)
    splits = pre_tokenizer.get("pretokenizers", [pre_tokenizer])
    if not all(token["special"] for token in parts.get("added_tokens", ())):
        return False
    marks_words = normalizes[-len(_COLLAPSED) :] == _COLLAPSED
    local = normalizes[: -len(_COLLAPSED)] if marks_words else normalizes
    if not all(step["type"] in ("BertNormalizer", "NFC", "Precompiled") for step in local):
        return False
    if marks_words:
        mark = {"type": "Metaspace", "replacement": MARK, "prepend_scheme": "never", "split": True}
        return splits[0] == mark and all(step["type"] == "Split" for step in splits[1:])
    return splits[0].get("type") in ("BertPreTokenizer", "WhitespaceSplit") and all(
        map(_is_local, splits[1:])
    )


def _normalizers(parts: dict[str, Any]) -> list[dict[str, Any]]:
    normalizer = parts.get("normalizer") or {}
    return normalizer.get("normalizers", [normalizer] if normalizer else [])


def _is_local(step: dict[str, Any]) -> bool:
    """Whether a pre-tokenizer treats every piece by itself."""
    return step["type"] in ("Punctuation", "ByteLevel") or (
        step["type"] == "Metaspace" and step["prepend_scheme"] == "always"
    )
