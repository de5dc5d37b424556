"""Packed samples from one or several token stores, by sample number."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from cluster.artefacts.errors import ConfigError, MismatchError
from cluster.artefacts.manifest import hash_json
from cluster.node_load import memory
from data_prep.token_store import TokenStore
from pipeline.samples.formats import PAIR_FORMATS, Format
from pipeline.samples.index_cache import EpochPrefetch, IndexCache, Summary
from pipeline.samples.mixture import IndexMaker, Mixture, Part, Sampling, StoreShare, cut_parts
from pipeline.samples.packed import EpochRows, Packed, Relation, Slice, slices_of_row
from pipeline.samples.text import (
    find_documents,
    number_sources,
    read_rows,
    sentence_positions,
    span_of,
    write_sources,
)

_PART_SHIFT = 48
"""A sample's id holds its part of the mixture in the bits above and its row in the bits below."""

_PREPARED_AHEAD = 1024
"""Samples of a mixture whose epochs are prepared before the first one is read."""

_LOOKED_THROUGH = 1 << 18
"""Rows of an index that are looked through at a time."""


@dataclass(frozen=True, slots=True)
class SampleOrigin:
    """Origin of one sample."""

    store: int
    """Index of the store in `TokenDataset.stores`."""
    epoch: int
    slices: list[Slice]
    """Its slices of documents from left to right; of a pair, both segments."""


class TokenDataset:
    """Samples `0, 1, 2, ...` without end; each a pure function of the stores' fingerprints and the settings."""

    def __init__(
        self, shares: Sequence[StoreShare], sampling: Sampling, *, cache: IndexCache | None = None
    ) -> None:
        """Choose the split's documents and count the samples they give.

        Args:
            cache: of the indices of epochs; samples are the same in any case.

        Raises:
            MismatchError: the stores were not made by the same tokenizer.
            ConfigError: a store's documents do not fill a single sample, or give no pairs; it has no such source or
                language; the format and the relation do not go together.
        """
        self.stores = [each.store for each in shares]
        _require_fit(self.stores, sampling.format, sampling.relation)
        self.shares, self.sampling = list(shares), sampling
        ids, pad = self.stores[0].special_tokens, sampling.pad
        self.special = ids["bos"], ids["eos"], ids["pad"] if pad is None else pad
        """Ids of `<s>`, `</s>` and padding."""
        names = sampling.source_names
        self._source_numbers = (
            None if names is None else [number_sources(store, names) for store in self.stores]
        )
        self._pairs = sampling.format in PAIR_FORMATS
        format, relation = sampling.format, sampling.relation
        # A setting that has its default leaves no trace, so that fingerprints outlive new settings.
        chosen = {
            "format": format if format != "contiguous" else None,
            "relation": relation,
            "random_pairs": "half of every length" if relation == "nsp" else None,
            "chunks": "from either end" if relation == "sop" and format == "segment_pair" else None,
            "attention": sampling.attention if sampling.attention != "documents" else None,
            "with_langs": sampling.with_langs or None,
            "language_temperature": sampling.language_temperature,
            "shared_targets": (sampling.shared_targets and format == "segment_pair") or None,
            "mixture": "tree" if len(shares) > 1 or sampling.by_language else None,
            "pad": None if pad == ids["pad"] else pad,
        }
        self.fingerprint = hash_json(
            [
                [[each.store.fingerprint, each.weight, each.sources, each.langs] for each in shares],
                [sampling.sequence_length, sampling.seed, sampling.held_out, sampling.split],
                *([name, value] for name, value in chosen.items() if value is not None),
            ]
        )
        if sum(store.size_bytes for store in self.stores) > memory().total:
            for store in self.stores:
                store.expect_random_reads()
        num_tokens = sum(store.num_tokens for store in self.stores)
        self._cache = cache
        self._key = None if cache is None else cache.key(self.fingerprint, num_tokens)
        self._parts, self._known_languages = (
            self._summary() if cache is None or self._key is None else cache.summary(self._key, self._summary)
        )
        self._num_rows = np.array([one.num_rows for one in self._parts], dtype=np.int64)
        self._mixture = Mixture([one.weight for one in self._parts], sampling.seed)
        self._epochs = EpochPrefetch(self._index, 2 * len(self._parts))

    @property
    def samples_per_epoch(self) -> list[int]:
        """Samples that one pass over each part of the mixture gives."""
        return self._num_rows.tolist()

    @property
    def num_documents(self) -> int:
        """Documents of the split, over all stores."""
        return sum(one.num_documents for one in self._parts)

    @cached_property
    def languages(self) -> list[str]:
        """ISO 639-1 codes of all documents, of both splits, in alphabetical order; `Packed.langs` numbers them."""
        return _languages(self.shares) if self._known_languages is None else self._known_languages

    def batch(self, samples: Sequence[int] | np.ndarray) -> Packed:
        """The samples with the given numbers, packed."""
        wanted = np.asarray(samples, dtype=np.int64)
        count, length = len(wanted), self.sampling.sequence_length
        input_ids = np.empty((count, length), dtype=np.int64)
        segment_ids = np.zeros((count, length) if self._pairs else (0, 0), dtype=np.uint8)
        sample_ids, epochs = np.empty(count, dtype=np.uint64), np.empty(count, dtype=np.uint64)
        labels, langs = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64)
        sources = np.empty((count, length) if self._source_numbers else (0, 0), dtype=np.int16)
        begins, sentences = [], []
        for part, epoch, places, indices in self._groups(wanted):
            if 2 * int(indices[-1]) >= self._parts[part].num_rows:
                self._epochs.begin(part, epoch + 1)
            found = self._epochs.get(part, epoch)
            rows = found.rows_at(indices)
            slices = found.slices_of(rows)
            sample_ids[places], epochs[places] = _sample_ids(part, rows), epoch
            share = self._parts[part].share
            index = self.stores[share].index
            begins.append(read_rows(index, slices, places, self.special, input_ids, segment_ids))
            if found.pair_labels is not None:
                labels[places] = found.pair_labels[rows]
            if self.sampling.with_langs:
                langs[places] = self.languages.index(str(self._parts[part].lang))
            if self.sampling.with_sentence_starts:
                text = find_documents(index, slices.documents)
                sentences.append(sentence_positions(text, slices, places, length))
            if self._source_numbers:
                write_sources(index, slices, places, self._source_numbers[share], sources)
        if self.sampling.attention == "full":
            boundaries = np.arange(count + 1, dtype=np.int32) * np.int32(length)
        else:
            boundaries = _merged(begins or [np.zeros(1, dtype=np.int32)])
        return Packed(
            input_ids,
            boundaries,
            sample_ids,
            epochs,
            sentence_starts=_merged(sentences) if self.sampling.with_sentence_starts else None,
            segment_ids=segment_ids if self._pairs else None,
            pair_labels=labels if self._pairs else None,
            langs=langs if self.sampling.with_langs else None,
            sources=sources if self._source_numbers else None,
        )

    def identify(self, samples: Sequence[int] | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """`Packed.sample_ids` and `Packed.epochs` of the samples with the given numbers, without their texts."""
        wanted = np.asarray(samples, dtype=np.int64)
        sample_ids, epochs = np.empty(len(wanted), dtype=np.uint64), np.empty(len(wanted), dtype=np.uint64)
        for part, epoch, places, indices in self._groups(wanted):
            rows = self._epochs.get(part, epoch).rows_at(indices)
            sample_ids[places], epochs[places] = _sample_ids(part, rows), epoch
        return sample_ids, epochs

    def prepare(self, sample: int) -> None:
        """Begin to make, in threads, the indices of the epochs that `sample` and the next ones lie in."""
        ahead = _PREPARED_AHEAD if len(self._parts) > 1 else 1
        for part, epoch, _, _ in self._groups(np.arange(sample, sample + ahead)):
            self._epochs.begin(part, epoch)

    def origin(self, sample: int) -> SampleOrigin:
        """The documents that a sample is made of."""
        ((part, epoch, _, indices),) = self._groups(np.array([sample]))
        found = self._epochs.get(part, epoch)
        slices = found.slices_of(found.rows_at(indices))
        return SampleOrigin(self._parts[part].share, epoch, slices_of_row(slices))

    def samples_with(self, store: int, documents: np.ndarray, last: int) -> Iterator[tuple[int, np.ndarray]]:
        """(document, its samples before number `last`, int64 ascending) of those of the documents that are in any.

        The index of every epoch until then is looked through once; no text is read.

        Args:
            store: index of the store in `stores`.
            documents: ascending indices.
        """
        found: dict[int, list[np.ndarray]] = {}
        for number, part in enumerate(self._parts):
            if part.share != store:
                continue
            own, epoch = 0, 0
            while self._mixture.samples_of(number, np.array([own]))[0] < last:
                index = self._epochs.get(number, epoch)
                for first in range(0, part.num_rows, _LOOKED_THROUGH):
                    places = np.arange(first, min(first + _LOOKED_THROUGH, part.num_rows))
                    slices = index.slices_of(index.rows_at(places))
                    for k in np.flatnonzero(np.isin(slices.documents, documents)).tolist():
                        place = first + int(np.searchsorted(slices.offsets, k, side="right")) - 1
                        found.setdefault(int(slices.documents[k]), []).append(
                            self._mixture.samples_of(number, np.array([own + place]))
                        )
                own, epoch = own + part.num_rows, epoch + 1
        for document, samples in sorted(found.items()):
            unique = np.unique(np.concatenate(samples))
            if len(unique := unique[unique < last]):
                yield document, unique

    def _groups(self, samples: np.ndarray) -> Iterator[tuple[int, int, np.ndarray, np.ndarray]]:
        """The samples that are of one epoch of one part of the mixture: part, epoch, their places among `samples`
        (int64, ascending) and their places in the epoch (int64)."""
        if len(self._parts) == 1 and len(samples):
            # Most batches are of one epoch of the only part: an array operation costs as much as reading ten rows.
            num_rows = self._parts[0].num_rows
            first, last = span_of(samples)
            if (epoch := first // num_rows) == last // num_rows:
                yield 0, epoch, np.arange(len(samples)), samples - epoch * num_rows
                return
        parts, own = self._mixture.locate(samples)
        epochs, indices = np.divmod(own, self._num_rows[parts])
        for part in np.unique(parts).tolist():
            for epoch in np.unique(epochs[parts == part]).tolist():
                places = np.flatnonzero((parts == part) & (epochs == epoch))
                yield part, epoch, places, indices[places]

    def _summary(self) -> Summary:
        parts = [part for part, _ in self._cut]
        return parts, _languages(self.shares) if self.sampling.with_langs else None

    @cached_property
    def _cut(self) -> list[tuple[Part, IndexMaker]]:
        """The parts, cut into rows; not needed while the cache holds the indices that are read."""
        return cut_parts(self.shares, self.sampling)

    def _index(self, number: int, epoch: int) -> EpochRows:
        if self._cache is None or self._key is None:
            return self._cut[number][1](epoch)
        return self._cache.epoch(self._key, number, epoch, lambda: self._cut[number][1](epoch))


def _sample_ids(part: int, rows: np.ndarray) -> np.ndarray:
    """uint64 `Packed.sample_ids` of rows of one part."""
    return (rows | (part << _PART_SHIFT)).view(np.uint64)


def _languages(shares: Sequence[StoreShare]) -> list[str]:
    return sorted({code for each in shares for code in each.languages()})


def _merged(positions: list[np.ndarray]) -> np.ndarray:
    """The different positions in several arrays, ascending; a single array is so already."""
    if len(positions) == 1:
        return positions[0]
    return np.unique(np.concatenate([np.empty(0, dtype=np.int32), *positions]))


def _require_fit(stores: Sequence[TokenStore], format: Format, relation: Relation | None) -> None:
    first = stores[0]
    for other in stores[1:]:
        if other.tokenizer_path.read_bytes() != first.tokenizer_path.read_bytes():
            raise MismatchError(
                f"{other.path} and {first.path} were made by different tokenizers and cannot be mixed.",
                next_step="prepare both with `tokenizer.path` set to the same tokenizer.json",
            )
    if format in PAIR_FORMATS and relation is None:
        raise ConfigError(
            f"The format {format} needs to know the relation of the segments of a pair.",
            next_step="choose an objective that learns from pairs (relation nsp or sop), or another format",
        )
    if format not in PAIR_FORMATS and relation is not None:
        raise ConfigError(
            f"The relation {relation} is one of pairs, and the format {format} gives none.",
            next_step=f"choose one of the formats {', '.join(PAIR_FORMATS)}",
        )
