"""Bulk encoding with tokenizers that never look across white space: every word is encoded once and then looked up.

So it is for BERT's WordPiece, for SentencePiece with the usual settings, and for word lexicons. Text is cut into
words as UTF-8 bytes by Arrow and NumPy; only words that were never seen before reach Hugging Face tokenizers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, pairwise
from string import ascii_lowercase, ascii_uppercase
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
import regex

from data_prep.ragged import Ragged
from data_prep.tokenizers.reference import ReferenceEncoder, first_tokens

if TYPE_CHECKING:
    import pyarrow as pa

CACHE_BYTES = 256 << 20
"""Approximate size of the cache; a larger cache is emptied."""
_ENTRY_BYTES = 160
"""Bytes of a cached word beside its characters: a string object, a dictionary entry, ids."""
_INSIDE, _WHITE, _ALONE = 0, 1, 2
"""Class of an ASCII character: part of a word, white space, a word by itself."""
_WIDER_SPACES = "\N{NO-BREAK SPACE}\N{THIN SPACE}\N{NARROW NO-BREAK SPACE}\N{IDEOGRAPHIC SPACE}"
"""White space beyond ASCII that is frequent."""
_JOINS_BEFORE = regex.compile(
    r"[\p{M}\p{Grapheme_Cluster_Break=Extend}\p{Grapheme_Cluster_Break=ZWJ}\p{Grapheme_Cluster_Break=SpacingMark}]"
)
"""Characters that are one grapheme with a space before them (Unicode Standard Annex 29, rules GB9 and GB9a)."""
_JOINS_BEHIND = regex.compile(r"\p{Grapheme_Cluster_Break=Prepend}")
"""Characters that are one grapheme with a space behind them (rule GB9b)."""
_RUN_BYTES = 2 << 20
"""Texts are encoded in runs of about this size, whose arrays stay in the processor's caches."""
_SPACE_MARK = "▁"
_COLLAPSED = [
    {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "},
    {"type": "Replace", "pattern": {"Regex": r"\A "}, "content": ""},
    {"type": "Replace", "pattern": {"Regex": rf"[ {_SPACE_MARK}]+\z"}, "content": ""},
    {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE_MARK},
    {"type": "Prepend", "prepend": _SPACE_MARK},
]
"""How `sentencepiece_conversion.py` says that every word begins with one mark, whatever white space is around it."""


class WordCacheEncoder:
    """Encodes by looking words up. Texts with a sentence start inside a word are left to the reference."""

    name = "word_cache"

    def __init__(self, tokenizer_json: str, cache_bytes: int = CACHE_BYTES) -> None:
        parts = orjson.loads(tokenizer_json)
        self._reference = ReferenceEncoder(tokenizer_json)
        self._by_grapheme = _by_grapheme(parts)
        self._kinds, self._folded = self._read_characters(parts)
        spaces = [space for space in _WIDER_SPACES if self._pieces(f"x{space}x") == self._pieces("x x")]
        self._wider_spaces = [space.encode("utf-8") for space in spaces]
        self._cache_bytes = cache_bytes
        self._forget()

    def encode(self, texts: Sequence[str], cuts: Ragged) -> tuple[Ragged, Ragged]:
        runs = np.cumsum([len(text) for text in texts], dtype=np.int64) // _RUN_BYTES
        bounds = np.flatnonzero(np.diff(runs, prepend=-1, append=-1)).tolist()
        encoded = [
            self._encode(texts[first:last], cuts.take(np.arange(first, last)))
            for first, last in pairwise(bounds)
        ]
        return Ragged.join([ids for ids, _ in encoded]), Ragged.join([starts for _, starts in encoded])

    def _encode(self, texts: Sequence[str], cuts: Ragged) -> tuple[Ragged, Ragged]:
        words = self._split(texts)
        entries = self._look_up(words.distinct)[words.numbers]
        by_word = self._ids.take(entries)
        ids = Ragged(by_word.values, by_word.offsets[words.bounds])
        places = cuts.values + words.text_starts[cuts.row_of]
        reaching = np.searchsorted(words.ends, places, side="right")
        starts = first_tokens(ids, by_word.offsets[reaching])
        inside = np.append(words.starts, np.iinfo(np.int64).max)[reaching] - self._by_grapheme < places
        if self._by_grapheme:
            # The last space belongs to the word behind it, so that a cut between them is inside the word. Of a
            # line end that is one grapheme the first character alone counts as that space.
            inside |= (
                (reaching < len(words.starts))
                & (words.data[places - 1] == ord("\r"))
                & (words.data[places] == ord("\n"))
            )
        odd = np.concatenate([np.flatnonzero(self._odd[entries]), reaching[inside]])
        rows = np.unique(np.searchsorted(words.bounds, odd, side="right") - 1)
        if len(rows):
            own_cuts = Ragged.of([cuts[row] for row in rows])
            own = self._reference.encode([texts[int(row)] for row in rows], own_cuts)
            ids, starts = ids.replaced(rows, own[0]), starts.replaced(rows, own[1])
        return ids, starts

    def _split(self, texts: Sequence[str]) -> _Words:
        import pyarrow as pa

        encoded = [text.encode("utf-8") for text in texts]
        joined = b" ".join([*encoded, b""])
        for space in self._wider_spaces:
            joined = joined.replace(space, b" " * len(space))
        data = np.frombuffer(joined, dtype=np.uint8)
        sizes = np.fromiter(map(len, encoded), dtype=np.int64, count=len(encoded))
        kinds = self._kinds[data]
        breaks = kinds != _INSIDE
        alone = kinds == _ALONE
        inside = ~breaks
        starts = np.flatnonzero(alone | (inside & np.append(True, breaks)[:-1]))
        ends = np.flatnonzero(alone | (inside & np.append(breaks, True)[1:])) + 1
        offsets = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(ends - starts)])
        letters = self._folded[data[kinds != _WHITE]]
        array = pa.LargeStringArray.from_buffers(len(starts), pa.py_buffer(offsets), pa.py_buffer(letters))
        text_starts = np.cumsum(sizes + 1) - sizes - 1
        bounds = np.append(np.searchsorted(starts, text_starts), len(starts))
        return _Words(data, array.dictionary_encode(), starts, ends, text_starts, bounds)

    def _look_up(self, words: list[str]) -> np.ndarray:
        """[words] int64 numbers of entries; words not seen before get one."""
        if self._size > self._cache_bytes:
            self._forget()
        if missing := [word for word in words if word not in self._entry_of]:
            self._learn(missing)
        return np.fromiter(map(self._entry_of.__getitem__, words), dtype=np.int64, count=len(words))

    def _learn(self, words: list[str]) -> None:
        encodings = self._reference.tokenizer.encode_batch(words, add_special_tokens=False)
        ids = [encoding.ids for encoding in encodings]
        lengths = np.fromiter(map(len, ids), dtype=np.int64, count=len(ids))
        flat = np.fromiter(chain.from_iterable(ids), dtype=np.uint32, count=int(lengths.sum()))
        odd = [self._is_odd(word) for word in words] if self._by_grapheme else np.zeros(len(words), bool)
        self._entry_of.update(zip(words, range(len(self._ids), len(self._ids) + len(words)), strict=True))
        offsets = np.append(self._ids.offsets, self._ids.offsets[-1] + np.cumsum(lengths))
        self._ids = Ragged(np.append(self._ids.values, flat), offsets)
        self._odd = np.append(self._odd, odd)
        self._size += sum(map(len, words)) + _ENTRY_BYTES * len(words)

    def _forget(self) -> None:
        self._entry_of: dict[str, int] = {}
        self._ids = Ragged(np.empty(0, dtype=np.uint32), np.zeros(1, dtype=np.int64))
        self._odd = np.empty(0, dtype=bool)
        self._size = 0
        self._fading: dict[str, bool] = {}

    def _is_odd(self, word: str) -> bool:
        """Whether a word may have to do with the space beside it: they form a grapheme, or what it begins or ends
        with becomes white space or disappears."""
        joins = _JOINS_BEFORE.match(word[0]) or _JOINS_BEHIND.match(word[-1])
        return bool(joins) or self._fades(word[0]) or self._fades(word[-1])

    def _fades(self, character: str) -> bool:
        if character not in self._fading:
            pieces = self._pieces(f"x{character}x")
            self._fading[character] = len(pieces) != 1 or pieces == self._pieces("xx")
        return self._fading[character]

    def _read_characters(self, parts: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
        """[256] uint8 what each byte of UTF-8 does; [256] uint8 the byte that it may be replaced by beforehand."""
        kinds, folded = np.full(256, _INSIDE, dtype=np.uint8), np.arange(256, dtype=np.uint8)
        for byte in range(128):
            pieces = self._pieces(f"x{chr(byte)}x")
            if pieces == self._pieces("x x"):
                kinds[byte] = _WHITE
            elif not self._by_grapheme and len(pieces) == 3 and pieces[0] == pieces[2]:
                kinds[byte] = _ALONE
        if (parts["normalizer"] or {}).get("lowercase"):
            folded[list(map(ord, ascii_uppercase))] = list(map(ord, ascii_lowercase))
        return kinds, folded

    def _pieces(self, text: str) -> list[str]:
        """The text after normalizer and pre-tokenizer, piece by piece: the input of the model."""
        tokenizer = self._reference.tokenizer
        normalizer, splitter = tokenizer.normalizer, tokenizer.pre_tokenizer
        normalized = text if normalizer is None else normalizer.normalize_str(text)
        assert splitter is not None
        return [piece for piece, _ in splitter.pre_tokenize_str(normalized)]


@dataclass(frozen=True)
class _Words:
    """The words of texts that lie end to end, with a space behind each."""

    data: np.ndarray
    """[bytes] uint8 of the texts in UTF-8."""
    coded: pa.DictionaryArray
    starts: np.ndarray
    """[words] int64 bytes."""
    ends: np.ndarray
    text_starts: np.ndarray
    """[texts] int64 bytes."""
    bounds: np.ndarray
    """[texts + 1] int64: words of text `i` are those from `bounds[i]` to `bounds[i + 1]`."""

    @cached_property
    def distinct(self) -> list[str]:
        return self.coded.dictionary.to_pylist()

    @cached_property
    def numbers(self) -> np.ndarray:
        """[words] which of the distinct words each is."""
        return self.coded.indices.to_numpy()


def encodes_words_apart(tokenizer_json: str) -> bool:
    """Whether the ids of a text are the ids of its white-space separated words, concatenated."""
    parts = orjson.loads(tokenizer_json)
    normalizer, pre_tokenizer = parts.get("normalizer") or {}, parts.get("pre_tokenizer") or {}
    normalizes = normalizer.get("normalizers", [normalizer] if normalizer else [])
    splits = pre_tokenizer.get("pretokenizers", [pre_tokenizer])
    if not all(token["special"] for token in parts.get("added_tokens", ())):
        return False
    marks_words = normalizes[-len(_COLLAPSED) :] == _COLLAPSED
    local = normalizes[: -len(_COLLAPSED)] if marks_words else normalizes
    if not all(step["type"] in ("BertNormalizer", "NFC", "Precompiled") for step in local):
        return False
    if marks_words:
        mark = {"type": "Metaspace", "replacement": _SPACE_MARK, "prepend_scheme": "never", "split": True}
        return splits[0] == mark and all(step["type"] == "Split" for step in splits[1:])
    return splits[0].get("type") in ("BertPreTokenizer", "WhitespaceSplit") and all(
        map(_is_local, splits[1:])
    )


def _is_local(step: dict[str, Any]) -> bool:
    """Whether a pre-tokenizer treats every piece by itself."""
    return step["type"] in ("Punctuation", "ByteLevel") or (
        step["type"] == "Metaspace" and step["prepend_scheme"] == "always"
    )


def _by_grapheme(parts: dict[str, Any]) -> bool:
    """Whether normalisation may join a space with the character beside it."""
    described = orjson.dumps([parts.get("normalizer"), parts.get("pre_tokenizer")])
    return b'"Precompiled"' in described or b'"Metaspace"' in described
