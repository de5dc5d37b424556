"""Samples, as an objective asks for them and as it gets them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pipeline.samples.rows import Relation

if TYPE_CHECKING:
    from data_prep.token_store import TokenStore


NO_SOURCE = -1
"""The index of padding, and of sources without an index."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The samples that an objective asks for."""

    formats: tuple[str, ...]
    """Formats it can learn from. The first is the format of its paper, taken when the configuration names none."""
    length: int
    """Tokens of a sample as it is read. Differs from the sequence length where noise shortens the text (T5)."""
    sentence_starts: bool = False
    """Whether `Packed.sentence_starts` is needed."""
    langs: bool = False
    """Whether every sample must be in one language, named by `Packed.langs`."""
    relation: Relation | None = None
    """The relation of the segments of a pair; None reads plain text."""
    positions: int = 0
    """Tokens of the longest text that the network reads or writes, where that may be more than the sequence length."""


@dataclass(frozen=True, slots=True)
class Packed:
    """A micro-batch of packed samples."""

    input_ids: np.ndarray
    """[batch, length] int64 token ids."""
    cu_seqlens: np.ndarray
    """[pieces + 1] int32 boundaries in the flattened batch; attention stays inside them. With full attention,
    only the boundaries of rows."""
    sample_ids: np.ndarray
    """[batch] uint64 indices of the samples in their epoch; all randomness derives from these."""
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
    """[batch] int64 index of each row's language in `TokenDataset.languages`; None unless asked for."""
    sources: np.ndarray | None = None
    """[batch, length] int16 indices in `Sampling.source_names`; `NO_SOURCE` for padding and for other sources. None
    unless asked for."""

    def sources_at(self, positions: np.ndarray, *, ahead: int = 0) -> np.ndarray | None:
        """[positions] int16 index of the source `ahead` places after each of some ascending positions in the flattened
        batch; None if sources were not asked for."""
        return None if self.sources is None else self.sources.reshape(-1).take(positions + ahead)


def number_sources(store: TokenStore, names: Sequence[str]) -> np.ndarray:
    """[dictionaries, longest] int16: the index in `names` of each entry of each of the store's source dictionaries;
    `NO_SOURCE` for other names."""
    places = {name: number for number, name in enumerate(names)}
    dictionaries = store.source_dictionaries
    numbers = np.full((len(dictionaries), max(map(len, dictionaries), default=0)), NO_SOURCE, dtype=np.int16)
    for row, dictionary in zip(numbers, dictionaries, strict=True):
        row[: len(dictionary)] = [places.get(name, NO_SOURCE) for name in dictionary]
    return numbers
