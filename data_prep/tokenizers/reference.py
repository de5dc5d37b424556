"""Encoding with Hugging Face tokenizers: slow, works for every `tokenizer.json`, and is always right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from data_prep.ragged import Ragged

if TYPE_CHECKING:
    import pyarrow as pa


class Encoder(Protocol):
    """Turns documents into ids and sentence starts."""

    name: str
    """Name of the encoder in the manifest's statistics."""

    def encode(self, texts: pa.Array, cuts: Ragged) -> tuple[Ragged, Ragged]:
        """Encode whole documents, without adding special tokens.

        Text that spells a special token, such as `<s>`, becomes ordinary tokens: what a corpus says can never
        pose as the system's own marks.

        Args:
            texts: [documents] string, whole documents.
            cuts: per document the UTF-8 byte offsets at which its sentences but the first begin; see
                `sentences.py`.

        Returns:
            Per document uint32 ids, and int32 first token of each sentence: the first token that reaches beyond
            the cut. A document without tokens has no sentences; sentences that share a token become one.
        """
        ...


class ReferenceEncoder:
    """The reference that all other encoders must equal."""

    name = "tokenizers"

    def __init__(self, tokenizer_json: str) -> None:
        from tokenizers import Tokenizer

        self.tokenizer = Tokenizer.from_str(tokenizer_json)
        self.tokenizer.no_padding()
        self.tokenizer.no_truncation()
        self.tokenizer.encode_special_tokens = True

    def encode(self, texts: pa.Array, cuts: Ragged) -> tuple[Ragged, Ragged]:
        strings = texts.to_pylist()
        encodings = self.tokenizer.encode_batch(strings, add_special_tokens=False)
        ids = [np.array(encoding.ids, dtype=np.uint32) for encoding in encodings]
        starts = [
            _sentence_starts(encoding.offsets, _to_characters(strings[number], cuts[number]))
            for number, encoding in enumerate(encodings)
        ]
        return Ragged.of(ids), Ragged.of(starts)

    def encode_with_ends(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """The ids (uint32) of a text, and the bytes up to the end of each token and of all before it (uint32)."""
        encoding = self.tokenizer.encode(text, add_special_tokens=False)
        sizes = [len(character.encode("utf-8")) for character in text]
        bounds = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(sizes, dtype=np.int64)])
        ends = np.array([end for _, end in encoding.offsets], dtype=np.int64)
        reached = bounds[np.maximum.accumulate(ends)]
        return np.array(encoding.ids, dtype=np.uint32), reached.astype(np.uint32)


def _to_characters(text: str, byte_offsets: np.ndarray) -> np.ndarray:
    """The character offsets of UTF-8 byte offsets that lie on character boundaries."""
    if text.isascii() or not len(byte_offsets):
        return byte_offsets
    continuation = (np.frombuffer(text.encode("utf-8"), dtype=np.uint8) & 0xC0) == 0x80
    return byte_offsets - np.concatenate([[0], np.cumsum(continuation)])[byte_offsets]


def _sentence_starts(offsets: Sequence[tuple[int, int]], cuts: np.ndarray) -> np.ndarray:
    """The first token that reaches beyond each cut; sentences that share a token become one."""
    if not offsets:
        return np.empty(0, dtype=np.int32)
    ends = np.maximum.accumulate(np.array([end for _, end in offsets], dtype=np.int64))
    starts = np.searchsorted(ends, cuts, side="right")
    return np.unique(np.concatenate([[0], starts[starts < len(ends)]])).astype(np.int32)


def first_tokens(ids: Ragged, found: np.ndarray) -> Ragged:
    """Sentence starts (int32) of documents from where sentences were found to start in all ids, end to end."""
    filled = np.flatnonzero(ids.lengths)
    # Whatever starts behind the tokens of its document is the first token of a later one, or there is none.
    tokens = np.unique(np.concatenate([ids.offsets[filled], found[found < len(ids.values)]]))
    rows = np.searchsorted(ids.offsets, tokens, side="right") - 1
    counts = np.bincount(rows, minlength=len(ids))
    offsets = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(counts)])
    return Ragged((tokens - ids.offsets[rows]).astype(np.int32), offsets)
