"""WordPiece and unigram models compiled: the ids of words, without Hugging Face tokenizers and equal to its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from data_prep.ragged import Ragged
from data_prep.tokenizers.characters import MARK, Characters
from data_prep.tokenizers.segment_kernel import build_trie, child, encode_unigram, encode_wordpiece

_UNKNOWN_PENALTY = 10.0
"""By how much an unknown character is less probable than any entry, in Hugging Face tokenizers and SentencePiece."""


class Segmenter(Protocol):
    """Encodes words."""

    def encode(self, keys: np.ndarray, key_offsets: np.ndarray, flags: np.ndarray) -> Ragged:
        """Per word [tokens, 2] uint32: ids, and bytes from the start of the word to the end of each token. A word with
        flags gets no tokens.

        Args:
            keys: uint8 UTF-8 of all words, of characters that are known.
            key_offsets: [words + 1] int64.
            flags: [words] uint8.
        """
        ...


def make_segmenter(parts: dict[str, Any], characters: Characters) -> Segmenter | None:
    """The compiled model of a tokenizer.json; None where there is none."""
    model = parts["model"]
    make = _SEGMENTERS.get((model.get("type"), characters.marked))
    split_further = any(step["type"] == "Split" for step in _splits(parts))
    has_unknown = model.get("unk_id") is not None or model.get("unk_token") in model["vocab"]
    return make(model, characters) if make and has_unknown and not split_further else None


def _splits(parts: dict[str, Any]) -> list[dict[str, Any]]:
    pre_tokenizer = parts["pre_tokenizer"]
    return pre_tokenizer.get("pretokenizers", [pre_tokenizer])


class _Trie:
    """Vocabulary entries by their characters."""

    def __init__(self, entries: Sequence[str], ids: np.ndarray) -> None:
        codes = np.frombuffer("".join(entries).encode("utf-32-le", "surrogatepass"), dtype=np.int32)
        offsets = np.concatenate([[0], np.cumsum(list(map(len, entries)))]).astype(np.int64)
        size = 1 << int(2 * len(codes) + 2).bit_length()
        self.edges, self.children = np.full(size, -1, dtype=np.int64), np.empty(size, dtype=np.int32)
        ends = np.full(len(codes) + 1, -1, dtype=np.int32)
        nodes = build_trie(codes, offsets, self.edges, self.children, ends)
        self.entry_ids = np.where(ends < 0, -1, ids[ends])[:nodes].astype(np.int32)

    def node(self, prefix: str) -> int:
        """The node behind a prefix of entries, or -1."""
        node = 0
        for character in prefix:
            node = -1 if node < 0 else child(self.edges, self.children, node, ord(character))
        return node


class _WordPiece:
    def __init__(self, model: dict[str, Any], characters: Characters) -> None:
        vocabulary: dict[str, int] = model["vocab"]
        self._characters = characters
        self._trie = _Trie(list(vocabulary), np.fromiter(vocabulary.values(), np.int64, len(vocabulary)))
        self._continuation = self._trie.node(model["continuing_subword_prefix"])
        self._unknown = vocabulary[model["unk_token"]]
        self._max_characters: int = model["max_input_chars_per_word"]

    def encode(self, keys: np.ndarray, key_offsets: np.ndarray, flags: np.ndarray) -> Ragged:
        room = _Room(self._characters, key_offsets)
        codes, ends = room.codes
        trie = self._trie
        while not encode_wordpiece(
            keys,
            key_offsets,
            flags,
            self._characters.first_symbols,
            self._characters.num_symbols,
            self._characters.symbols,
            trie.edges,
            trie.children,
            trie.entry_ids,
            self._continuation,
            self._unknown,
            self._max_characters,
            codes,
            ends,
            room.tokens,
            room.offsets,
            room.state,
        ):
            room.widen()
        return room.rows()


class _Unigram:
    def __init__(self, model: dict[str, Any], characters: Characters) -> None:
        entries = [entry for entry, _ in model["vocab"]]
        self._characters = characters
        self._trie = _Trie(entries, np.arange(len(entries)))
        self._scores = np.array([score for _, score in model["vocab"]], dtype=np.float64)
        self._unknown: int = model["unk_id"]
        self._unknown_score = float(self._scores.min()) - _UNKNOWN_PENALTY
        numbers = {entry: number for number, entry in enumerate(entries)}
        spelled = [numbers.get(f"<0x{byte:02X}>", -1) for byte in range(256)]
        self._byte_ids = np.array(spelled if model.get("byte_fallback") else [], dtype=np.int64)

    def encode(self, keys: np.ndarray, key_offsets: np.ndarray, flags: np.ndarray) -> Ragged:
        room = _Room(self._characters, key_offsets)
        codes, ends = room.codes
        best, (back, entries, path) = np.empty(len(codes)), np.empty((3, len(codes)), dtype=np.int32)
        trie = self._trie
        while not encode_unigram(
            keys,
            key_offsets,
            flags,
            ord(MARK),
            self._characters.first_symbols,
            self._characters.num_symbols,
            self._characters.symbols,
            trie.edges,
            trie.children,
            trie.entry_ids,
            self._scores,
            self._unknown,
            self._unknown_score,
            self._byte_ids,
            codes,
            ends,
            best,
            back,
            entries,
            path,
            room.tokens,
            room.offsets,
            room.state,
        ):
            room.widen()
        return room.rows()


class _Room:
    """Arrays that a kernel fills in."""

    def __init__(self, characters: Characters, key_offsets: np.ndarray) -> None:
        longest = int(np.diff(key_offsets).max(initial=0))
        # Each character becomes at most so many codes, and a mark before each.
        most = 2 * longest * int(characters.num_symbols.max()) + 2
        self.codes = tuple(np.empty((2, most), dtype=np.int32))
        num_bytes = int(key_offsets[-1] - key_offsets[0])
        self.tokens = np.empty((num_bytes + 4 * most, 2), dtype=np.uint32)
        self.offsets = np.zeros(len(key_offsets), dtype=np.int64)
        self.state = np.zeros(1, dtype=np.int64)

    def widen(self) -> None:
        self.tokens = np.concatenate([self.tokens, np.empty_like(self.tokens)])

    def rows(self) -> Ragged:
        return Ragged(self.tokens[: self.offsets[-1]], self.offsets)


_SEGMENTERS = {("WordPiece", False): _WordPiece, ("Unigram", True): _Unigram}
"""By the type of the model, and whether its pieces begin with marks."""
