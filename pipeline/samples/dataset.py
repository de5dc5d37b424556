"""Packed samples from one or several token stores, by sample number."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from cluster.artefacts.errors import ConfigError, MismatchError
from cluster.artefacts.manifest import hash_json
from data_prep.token_store import TokenStore
from pipeline.samples.epochs.epochs import Epochs
from pipeline.samples.epochs.ingredients import Ingredient, Split
from pipeline.samples.epochs.kept_layouts import KeptLayouts, KeptOutline
from pipeline.samples.epochs.laid_out import Epoch, LaidOut
from pipeline.samples.epochs.order import SCHEDULE_PERIOD, Mixture, Place
from pipeline.samples.epochs.stocks import Cutting, Stock
from pipeline.samples.packed import Packed, Special
from pipeline.samples.piece_sources import PieceSources, find_sources, number_sources
from pipeline.samples.reader import sentence_positions, write_rows
from pipeline.samples.reading import PAIR_FORMATS, Format, Relation
from pipeline.samples.spans import Piece, pieces_of
from pipeline.samples.text import find_documents, find_source_numbers

_STORE_SHIFT = np.uint64(48)
"""A sample's id holds its part of the mixture in the bits above and its row in the bits below."""


@dataclass(frozen=True, slots=True)
class SampleOrigin:
    """Where one sample comes from."""

    store: int
    """Number of the store among `TokenDataset.stores`."""
    place: Place
    pieces: list[Piece]
    """Its stretches of documents from left to right; of a pair, both segments."""


class TokenDataset:
    """Samples `0, 1, 2, ...` without end; each a pure function of the stores' fingerprints and the settings."""

    def __init__(
        self,
        ingredients: Sequence[Ingredient],
        *,
        sequence_length: int,
        pad: int | None = None,
        seed: int,
        held_out: float,
        split: Split = "train",
        format: Format = "contiguous",
        relation: Relation | None = None,
        attention: Literal["documents", "full"] = "documents",
        with_sentence_starts: bool = False,
        with_langs: bool = False,
        source_names: Sequence[str] | None = None,
        language_temperature: float | None = None,
        layouts: KeptLayouts | None = None,
    ) -> None:
        """Choose the split's documents and lay out the samples.

        Args:
            sequence_length: positions of a sample.
            pad: id of what fills rows; None takes that of the stores.
            format: how samples are cut from documents; see `formats.py`.
            relation: what the segments of a pair are to each other; for formats of pairs, and only for those.
            attention: with "full", `Packed.cu_seqlens` tells where rows begin and nothing of what is in them.
            with_sentence_starts: fill in `Packed.sentence_starts`.
            with_langs: keep every sample in one language, and fill in `Packed.langs`. Languages that fill no sample
                of the held-out split are left out of it.
            source_names: the sources that `Packed.sources` numbers; a document of another one counts as of none. They
                are given, because phases of a run with fewer stores must have the same numbers. None: it is not
                filled in. Samples are the same in any case.
            language_temperature: the exponent that evens out the shares of languages, such as 0.7; keeps every
                sample in one language, too. None: every language has its share of the tokens.
            layouts: where what is laid out is kept, and found again; samples are the same in any case.

        Raises:
            MismatchError: the stores were not made by the same tokenizer.
            ConfigError: a store's documents fill not a single sample, or give no pairs; it has no such source or
                language; the format and the relation do not go together.
        """
        self.stores = [each.store for each in ingredients]
        _require_same_tokenizer(self.stores)
        _require_relation(format, relation)
        self.ingredients = list(ingredients)
        self.sequence_length = sequence_length
        ids = self.stores[0].special_tokens
        self.special = Special(bos=ids["bos"], eos=ids["eos"], pad=ids["pad"] if pad is None else pad)
        self._full_attention = attention == "full"
        self._with_sentence_starts = with_sentence_starts
        self._with_langs = with_langs
        self.source_names = None if source_names is None else list(source_names)
        self._source_numbers = (
            None if source_names is None else [number_sources(store, source_names) for store in self.stores]
        )
        self._pairs = format in PAIR_FORMATS
        self._cutting = Cutting(
            self.ingredients,
            sequence_length,
            seed,
            held_out,
            split,
            format,
            relation,
            with_langs or language_temperature is not None,
            language_temperature,
        )
        # A setting that has its default leaves no trace, so that fingerprints outlive new settings.
        chosen = {
            "format": format if format != "contiguous" else None,
            "relation": relation,
            "random_pairs": "half of every length" if relation == "nsp" else None,
            "attention": attention if self._full_attention else None,
            "with_langs": with_langs or None,
            "language_temperature": language_temperature,
            "pad": None if self.special.pad == ids["pad"] else self.special.pad,
        }
        self.fingerprint = hash_json(
            [
                [[each.store.fingerprint, each.weight, each.sources, each.langs] for each in ingredients],
                [sequence_length, seed, held_out, split],
                *([name, value] for name, value in chosen.items() if value is not None),
            ]
        )
        num_tokens = sum(store.num_tokens for store in self.stores)
        self._kept = None if layouts is None else layouts.of(self.fingerprint, num_tokens)
        outline = self._outline()
        self._outlines, self._kept_languages = outline.stocks, outline.languages
        self._num_rows = np.array([one.num_rows for one in self._outlines], dtype=np.int64)
        self._mixture = Mixture([one.weight for one in self._outlines], seed)
        self._epochs = Epochs(self._epoch, 2 * len(self._outlines))

    @property
    def samples_per_epoch(self) -> list[int]:
        """Samples that one pass over each part gives: a part is a store, or one of its languages."""
        return self._num_rows.tolist()

    @property
    def num_documents(self) -> int:
        """Documents of the split, over all stores."""
        return sum(one.num_documents for one in self._outlines)

    @cached_property
    def languages(self) -> list[str]:
        """ISO 639-1 codes of all documents, of both splits, in alphabetical order: what `Packed.langs` numbers."""
        return _languages(self.ingredients) if self._kept_languages is None else self._kept_languages

    def batch(self, samples: Sequence[int] | np.ndarray) -> Packed:
        """The samples with the given numbers, packed: see `Packed` for shapes."""
        parts, epochs, indices = self._find(np.asarray(samples, dtype=np.int64))
        count, length = len(parts), self.sequence_length
        input_ids = np.empty((count, length), dtype=np.int64)
        segment_ids = np.zeros((count, length) if self._pairs else (0, 0), dtype=np.uint8)
        labels = np.empty(count if self._pairs else 0, dtype=np.int64)
        rows = np.empty(count, dtype=np.int64)
        pieces, sentences, sources = [], [], []
        special = (self.special.bos, self.special.eos, self.special.pad)
        for part, epoch, places in _groups(parts, epochs):
            if 2 * int(indices[places].max()) >= self._num_rows[part]:
                self._epochs.begin(part, epoch + 1)
            rows[places], spans, pair_labels = self._epochs.get(part, epoch).draw(indices[places])
            ingredient = self._outlines[part].ingredient
            index = self.stores[ingredient].index
            text = find_documents(index, spans.documents)
            pieces.append(write_rows(text, spans, places, special, input_ids, segment_ids))
            if pair_labels is not None:
                labels[places] = pair_labels
            if self._with_sentence_starts:
                sentences.append(sentence_positions(text, spans, places, length))
            if self._source_numbers is not None:
                of_spans = find_source_numbers(index, spans.documents, self._source_numbers[ingredient])
                sources.append(PieceSources(*find_sources(spans, places, length, of_spans)))
        return Packed(
            input_ids,
            self._boundaries(pieces, count),
            sample_ids=_sample_ids(parts, rows),
            epochs=epochs.astype(np.uint64),
            sentence_starts=_merged(sentences) if self._with_sentence_starts else None,
            segment_ids=segment_ids if self._pairs else None,
            pair_labels=labels if self._pairs else None,
            langs=self._lang_of_part[parts] if self._with_langs else None,
            sources=None if self._source_numbers is None else PieceSources.merge(sources),
        )

    def identify(self, samples: Sequence[int] | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """`Packed.sample_ids` and `Packed.epochs` of the samples with the given numbers, without their texts."""
        parts, epochs, indices = self._find(np.asarray(samples, dtype=np.int64))
        rows = np.empty(len(parts), dtype=np.int64)
        for part, epoch, places in _groups(parts, epochs):
            rows[places] = self._epochs.get(part, epoch).draw(indices[places]).rows
        return _sample_ids(parts, rows), epochs.astype(np.uint64)

    def prepare(self, sample: int) -> None:
        """Begin to lay out, in threads, the epochs that `sample` and those behind it lie in."""
        if len(self._outlines) == 1:
            self._epochs.begin(0, sample // int(self._num_rows[0]))
            return
        parts, epochs, _ = self._find(np.arange(sample, sample + SCHEDULE_PERIOD))
        for part, epoch, _ in _groups(parts, epochs):
            self._epochs.begin(part, epoch)

    def locate(self, sample: int) -> tuple[int, Place]:
        """The part (see `samples_per_epoch`), epoch and row of a sample."""
        (part,), (epoch,), (index,) = (each.tolist() for each in self._find(np.array([sample])))
        drawn = self._epochs.get(part, epoch).draw(np.array([index]))
        return part, Place(epoch, int(drawn.rows[0]))

    def origin(self, sample: int) -> SampleOrigin:
        """The documents that a sample is made of."""
        (part,), (epoch,), indices = self._find(np.array([sample]))
        drawn = self._epochs.get(int(part), int(epoch)).draw(indices)
        place = Place(int(epoch), int(drawn.rows[0]))
        return SampleOrigin(self._outlines[part].ingredient, place, pieces_of(drawn.spans))

    def _find(self, samples: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Of every sample, int64: its part of the mixture, the epoch of that part, its place in the epoch."""
        parts, own = self._mixture.locate(samples)
        epochs, indices = np.divmod(own, self._num_rows[parts])
        return parts, epochs, indices

    def _boundaries(self, begins: list[np.ndarray], num_rows: int) -> np.ndarray:
        length = self.sequence_length
        if self._full_attention:
            return np.arange(num_rows + 1, dtype=np.int32) * np.int32(length)
        merged = _merged(begins)
        found = np.empty(len(merged) + 1, dtype=np.int32)
        found[:-1], found[-1] = merged, num_rows * length
        return found

    @cached_property
    def _lang_of_part(self) -> np.ndarray:
        """[parts] int64 number of each part's language."""
        return np.array([self.languages.index(str(one.lang)) for one in self._outlines])

    def _outline(self) -> KeptOutline:
        """What must be known of the stocks before the first sample is read: as it was kept, else from the stocks."""
        if self._kept is not None and (known := self._kept.outline()) is not None:
            return known
        try:
            outlines = [stock.outline for stock in self._stocks]
        except ConfigError as error:
            if self._kept is not None:
                self._kept.keep_refusal(error)
            raise
        found = KeptOutline(outlines, _languages(self.ingredients) if self._with_langs else None)
        if self._kept is not None:
            self._kept.keep_outline(found)
        return found

    @cached_property
    def _stocks(self) -> list[Stock]:
        """Made when an epoch must be laid out."""
        return self._cutting.stocks()

    def _epoch(self, part: int, number: int) -> Epoch:
        def lay_out() -> LaidOut:
            return self._stocks[part].lay_out(number)

        if self._kept is None:
            return lay_out()
        outline = self._outlines[part]
        num_documents = self.stores[outline.ingredient].num_documents
        return self._kept.epoch(part, number, lay_out, outline, num_documents)


def _sample_ids(parts: np.ndarray, rows: np.ndarray) -> np.ndarray:
    return (parts.astype(np.uint64) << _STORE_SHIFT) | rows.astype(np.uint64)


def _languages(ingredients: Sequence[Ingredient]) -> list[str]:
    return sorted({code for each in ingredients for code in each.languages()})


def _groups(parts: np.ndarray, epochs: np.ndarray) -> Iterator[tuple[int, int, np.ndarray]]:
    """(part, epoch, ascending int64 places in the batch) of the samples that are of one epoch of one part."""
    if len(parts) and (parts == parts[0]).all() and (epochs == epochs[0]).all():
        yield int(parts[0]), int(epochs[0]), np.arange(len(parts))
        return
    for part in np.unique(parts).tolist():
        for epoch in np.unique(epochs[parts == part]).tolist():
            yield part, epoch, np.flatnonzero((parts == part) & (epochs == epoch))


def _merged(positions: list[np.ndarray]) -> np.ndarray:
    """Ascending positions from several arrays of them."""
    if len(positions) == 1:
        return positions[0]
    return np.sort(np.concatenate([np.empty(0, dtype=np.int32), *positions]))


def _require_relation(format: Format, relation: Relation | None) -> None:
    if format in PAIR_FORMATS and relation is None:
        raise ConfigError(
            f"The format {format} needs to know what the segments of a pair are to each other.",
            next_step="choose an objective that learns from pairs (relation nsp or sop), or another format",
        )
    if format not in PAIR_FORMATS and relation is not None:
        raise ConfigError(
            f"The relation {relation} is one of pairs, and the format {format} gives none.",
            next_step=f"choose one of the formats {', '.join(PAIR_FORMATS)}",
        )


def _require_same_tokenizer(stores: Sequence[TokenStore]) -> None:
    first = stores[0]
    for other in stores[1:]:
        if other.tokenizer_path.read_bytes() != first.tokenizer_path.read_bytes():
            raise MismatchError(
                f"{other.path} and {first.path} were made by different tokenizers and cannot be mixed.",
                next_step="prepare both with `tokenizer.path` set to the same tokenizer.json",
            )
