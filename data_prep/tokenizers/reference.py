"""Encoding with Hugging Face tokenizers: slow, works for every `tokenizer.json`, and is always right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np


class Encoder(Protocol):
    """Turns documents into ids and sentence starts."""

    name: str
    """What the manifest's statistics call it."""
    batch_characters: int
    """Characters of text it likes to be given at a time."""

    def encode(self, texts: Sequence[str], cuts: Sequence[np.ndarray]) -> list[tuple[np.ndarray, np.ndarray]]:
        """Encode whole documents, without adding special tokens.

        Text that spells a special token, such as `<s>`, becomes ordinary tokens: what a corpus says can never
        pose as the system's own marks.

        Args:
            texts: whole documents.
            cuts: per document the character offsets of its sentences but the first; see `sentences.py`.

        Returns:
            Per document ([tokens] uint32 ids, [sentences] int32 first token of each sentence). A document
            without tokens has no sentences.
        """
        ...


class ReferenceEncoder:
    """The definition of what other encoders must give."""

    name = "tokenizers"
    batch_characters = 1 << 20

    def __init__(self, tokenizer_json: str) -> None:
        from tokenizers import Tokenizer

        self._tokenizer = Tokenizer.from_str(tokenizer_json)
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._tokenizer.encode_special_tokens = True

    def encode(self, texts: Sequence[str], cuts: Sequence[np.ndarray]) -> list[tuple[np.ndarray, np.ndarray]]:
        encodings = self._tokenizer.encode_batch(list(texts), add_special_tokens=False)
        return [
            (np.array(encoding.ids, dtype=np.uint32), _sentence_starts(encoding.offsets, own))
            for encoding, own in zip(encodings, cuts, strict=True)
        ]


def _sentence_starts(offsets: Sequence[tuple[int, int]], cuts: np.ndarray) -> np.ndarray:
    """The first token that reaches beyond each cut; sentences that share a token become one."""
    if not offsets:
        return np.empty(0, dtype=np.int32)
    ends = np.maximum.accumulate(np.array([end for _, end in offsets], dtype=np.int64))
    starts = np.searchsorted(ends, cuts, side="right")
    return np.unique(np.concatenate([[0], starts[starts < len(ends)]])).astype(np.int32)
