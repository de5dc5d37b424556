"""Micro-batches of packed samples: rows of pieces, each of which attends to itself.

A piece is a slice of one document, `<s> ids </s>` (a row may open inside a document with an extra `<s>`, and may end a
piece without `</s>`); a pair `<s> A </s> B </s>`; or the padding that closes a row. The format decides which slices
make a row: see `formats/`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipeline.samples.token_sources import TokenSources


@dataclass(frozen=True, slots=True)
class Special:
    """Ids of the special tokens that packing writes."""

    bos: int
    eos: int
    pad: int


@dataclass(frozen=True, slots=True)
class Packed:
    """A micro-batch of packed samples."""

    input_ids: np.ndarray
    """[batch, length] int64 token ids."""
    cu_seqlens: np.ndarray
    """[pieces + 1] int32 boundaries in the flattened batch; attention stays inside them. With full attention,
    only the boundaries of rows."""
    sample_ids: np.ndarray
    """[batch] uint64 numbers of the samples in their epoch; all randomness derives from these."""
    epochs: np.ndarray
    """[batch] uint64 epochs of the samples."""
    sentence_starts: np.ndarray | None = None
    """[sentences] int32 ascending positions in the flattened batch of the first token of every sentence. Every piece
    has one at its first text token. None unless asked for."""
    segment_ids: np.ndarray | None = None
    """[batch, length] uint8: 0 in the first and 1 in the second segment of a pair; None without pairs."""
    pair_labels: np.ndarray | None = None
    """[batch] int64, a pair per row: 0 when the second segment follows the first in the text, 1 when it does not (a
    random one, or both swapped); None without pairs."""
    langs: np.ndarray | None = None
    """[batch] int64 number of each row's language among `TokenDataset.languages`; None unless asked for."""
    sources: TokenSources | None = None
    """Numbers among `TokenDataset.source_names`; None unless asked for."""

    def sources_at(self, positions: np.ndarray, *, ahead: int = 0) -> np.ndarray | None:
        """[positions] int16 number of the source `ahead` places after each of some ascending positions in the flattened
        batch; None if sources were not asked for."""
        return None if self.sources is None else self.sources.at(positions, ahead)
