"""Packed samples from one or several token stores, by sample number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

from cluster.errors import ConfigError, MismatchError
from cluster.manifest import hash_json
from data_prep.token_store import TokenStore
from pipeline.batches.order import Mixture, Place, StoreOrder
from pipeline.batches.packing import Packed, PackedEpoch, Piece, Special, num_rows

Split = Literal["train", "held_out"]

_STORE_SHIFT = np.uint64(48)
"""A sample's id holds its store in the bits above and its row in the bits below."""


@dataclass(frozen=True, slots=True)
class SampleOrigin:
    """Where one sample comes from."""

    store: int
    place: Place
    pieces: list[Piece]


@dataclass(frozen=True, slots=True)
class Ingredient:
    """A token store, or the part of it that is in some sources or languages, and its share of a mixture."""

    store: TokenStore
    weight: float = 1.0
    """Share of the samples, relative to the other ingredients."""
    sources: tuple[str, ...] | None = None
    """None takes all."""
    langs: tuple[str, ...] | None = None
    """ISO 639-1 codes; None takes all."""

    def documents(self, held_out: float, split: Split) -> np.ndarray:
        """[documents] int64 ascending numbers of the split's documents.

        Raises:
            ConfigError: the store has no such source or language.
        """
        chosen = self.store.held_out(held_out)
        chosen = chosen if split == "held_out" else ~chosen
        for what, wanted, told in (
            ("source", self.sources, self.store.sources),
            ("language", self.langs, self.store.langs),
        ):
            if wanted is not None:
                chosen = chosen & _is_one_of(what, wanted, *told(), self.store)
        return np.flatnonzero(chosen)


def _is_one_of(
    what: str, wanted: Sequence[str], numbers: np.ndarray, names: list[str], store: TokenStore
) -> np.ndarray:
    if missing := sorted(set(wanted) - set(names)):
        raise ConfigError(
            f"{store.path} has no {what} {', '.join(missing)}; it has {', '.join(sorted(names))}.",
            next_step=f"correct `data.stores`, or prepare a store that has the {what}",
        )
    return np.isin(numbers, [names.index(name) for name in wanted])


class TokenDataset:
    """Samples `0, 1, 2, ...` without end; each a pure function of the stores' fingerprints and the settings."""

    def __init__(
        self,
        ingredients: Sequence[Ingredient],
        *,
        sequence_length: int,
        seed: int,
        held_out: float,
        split: Split = "train",
    ) -> None:
        """Choose the split's documents and lay out the samples.

        Raises:
            MismatchError: the stores were not made by the same tokenizer.
            ConfigError: a store's documents fill not a single sample, or it has no such source or language.
        """
        stores = [each.store for each in ingredients]
        _require_same_tokenizer(stores)
        self.stores = list(stores)
        self.sequence_length = sequence_length
        ids = stores[0].special_tokens
        self.special = Special(bos=ids["bos"], eos=ids["eos"], pad=ids["pad"])
        self._documents = [each.documents(held_out, split) for each in ingredients]
        counts = [
            num_rows(store.lengths, documents, sequence_length)
            for store, documents in zip(stores, self._documents, strict=True)
        ]
        for store, count in zip(stores, counts, strict=True):
            if count == 0:
                raise ConfigError(
                    f"The {split.replace('_', '-')} documents of {store.path} do not fill one sample of"
                    f" {sequence_length} tokens.",
                    next_step="lower batch.sequence_length, change data.held_out, or prepare more text",
                )
        self._orders = [
            StoreOrder(store.fingerprint, seed, count) for store, count in zip(stores, counts, strict=True)
        ]
        self._mixture = Mixture([each.weight for each in ingredients], seed)
        self._epoch = lru_cache(maxsize=2 * len(stores))(self._lay_out)
        self.fingerprint = hash_json(
            [
                [[each.store.fingerprint, each.weight, each.sources, each.langs] for each in ingredients],
                [sequence_length, seed, held_out, split],
            ]
        )

    @property
    def samples_per_epoch(self) -> list[int]:
        """Samples that one pass over each store gives."""
        return [order.num_rows for order in self._orders]

    @property
    def num_documents(self) -> int:
        """Documents of the split, over all stores."""
        return sum(len(documents) for documents in self._documents)

    def batch(self, samples: Sequence[int] | np.ndarray) -> Packed:
        """The samples with the given numbers, packed: see `Packed` for shapes."""
        length = self.sequence_length
        input_ids = np.empty((len(samples), length), dtype=np.uint32)
        sample_ids = np.empty(len(samples), dtype=np.uint64)
        epochs = np.empty(len(samples), dtype=np.uint64)
        boundaries = [0]
        for number, sample in enumerate(samples):
            store, place = self.locate(int(sample))
            packed, _ = self._epoch(store, place.epoch)
            ends = packed.write(place.row, input_ids[number])
            boundaries.extend(number * length + end for end in ends)
            sample_ids[number] = (np.uint64(store) << _STORE_SHIFT) | np.uint64(place.row)
            epochs[number] = place.epoch
        return Packed(input_ids, np.asarray(boundaries, dtype=np.int32), sample_ids, epochs)

    def locate(self, sample: int) -> tuple[int, Place]:
        """The store, epoch and row of a sample."""
        store, own = self._mixture.locate(sample)
        epoch, index = divmod(own, self._orders[store].num_rows)
        _, rows = self._epoch(store, epoch)
        return store, Place(epoch, int(rows[index]))

    def origin(self, sample: int) -> SampleOrigin:
        """The documents that a sample is made of."""
        store, place = self.locate(sample)
        packed, _ = self._epoch(store, place.epoch)
        return SampleOrigin(store, place, packed.pieces(place.row))

    def _lay_out(self, store: int, epoch: int) -> tuple[PackedEpoch, np.ndarray]:
        order = self._orders[store]
        documents = order.documents(epoch, self._documents[store])
        packed = PackedEpoch(self.stores[store], documents, self.sequence_length, self.special)
        return packed, order.rows(epoch)


def _require_same_tokenizer(stores: Sequence[TokenStore]) -> None:
    first = stores[0]
    for other in stores[1:]:
        if other.tokenizer_path.read_bytes() != first.tokenizer_path.read_bytes():
            raise MismatchError(
                f"{other.path} and {first.path} were made by different tokenizers and cannot be mixed.",
                next_step="prepare both with `tokenizer.path` set to the same tokenizer.json",
            )
