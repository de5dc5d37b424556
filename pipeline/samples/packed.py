"""Samples, as an objective asks for them and as it gets them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from cluster.compiled_loop import compiled_loop
from pipeline.samples.rows import Slices
from pipeline.samples.text import count_up_to

if TYPE_CHECKING:
    from data_prep.token_store import TokenStore

Relation = Literal["nsp", "sop"]
"""Origin of second segments: next or random (Devlin et al. 2019), or right or swapped order (Lan et al. 2020)."""


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
    sources: TokenSources | None = None
    """Indices in `Sampling.source_names`; None unless asked for."""

    def sources_at(self, positions: np.ndarray, *, ahead: int = 0) -> np.ndarray | None:
        """[positions] int16 index of the source `ahead` places after each of some ascending positions in the flattened
        batch; None if sources were not asked for."""
        return None if self.sources is None else _look_up(*self.sources, positions, ahead)


NO_SOURCE = -1
"""The index of padding, and of sources without an index."""


class TokenSources(NamedTuple):
    """The source of every token of a batch, whether or not attention stays inside documents."""

    begins: np.ndarray
    """[slices] int32 ascending positions in the flattened batch: the first of each slice of a document, with its `<s>`,
    and of padding."""
    numbers: np.ndarray
    """[slices] int16 index of each slice's source, or `NO_SOURCE`."""

    @classmethod
    def merge(cls, parts: Sequence[TokenSources]) -> TokenSources:
        """The sources of several groups of rows as one."""
        if len(parts) == 1:
            return parts[0]
        begins = np.concatenate([np.empty(0, dtype=np.int32), *(part.begins for part in parts)])
        numbers = np.concatenate([np.empty(0, dtype=np.int16), *(part.numbers for part in parts)])
        order = np.argsort(begins, kind="stable")
        return cls(begins[order], numbers[order])


def number_sources(store: TokenStore, names: Sequence[str]) -> np.ndarray:
    """[dictionaries, longest] int16: the index in `names` of each entry of each of the store's source dictionaries;
    `NO_SOURCE` for other names."""
    places = {name: number for number, name in enumerate(names)}
    dictionaries = store.source_dictionaries
    numbers = np.full((len(dictionaries), max(map(len, dictionaries), default=0)), NO_SOURCE, dtype=np.int16)
    for row, dictionary in zip(numbers, dictionaries, strict=True):
        row[: len(dictionary)] = [places.get(name, NO_SOURCE) for name in dictionary]
    return numbers


@compiled_loop
def find_sources(
    slices: Slices, places: np.ndarray, length: int, sources: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The fields of `TokenSources`, for some rows of a batch.

    Args:
        slices: the slices of documents in the rows.
        places: [rows] int64 ascending: which row of the batch each of them becomes.
        length: columns of a row.
        sources: [slices] int16 source of every slice's document.
    """
    begins = np.empty(len(slices.documents) + len(places), dtype=np.int32)
    numbers = np.empty(len(begins), dtype=np.int16)
    count = 0
    for i in range(len(places)):
        column = 0
        for k in range(slices.offsets[i], slices.offsets[i + 1]):
            begins[count] = places[i] * length + column
            numbers[count] = sources[k]
            count += 1
            column += slices.stops[k] - slices.starts[k]
            column += (1 if slices.opened[k] else 0) + (1 if slices.closed[k] else 0)
        if column < length:
            begins[count] = places[i] * length + column
            numbers[count] = NO_SOURCE
            count += 1
    return begins[:count], numbers[:count]


@compiled_loop
def _look_up(begins: np.ndarray, numbers: np.ndarray, positions: np.ndarray, ahead: int) -> np.ndarray:
    """`Packed.sources_at`: the positions of each slice are found by binary search, and filled in together."""
    found = np.empty(len(positions), dtype=np.int16)
    start = 0
    for k in range(len(begins)):
        stop = len(positions)
        if k + 1 < len(begins):
            stop = start + count_up_to(positions[start:], begins[k + 1] - 1 - ahead)
        found[start:stop] = numbers[k]
        start = stop
    return found
