"""The parts of a mixture, cut into rows, which takes the length of each document."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cluster.artefacts.errors import ConfigError
from pipeline.samples.epochs.shuffle import StoreOrder
from pipeline.samples.formats import FORMATS
from pipeline.samples.formats.base import FormatInput, RowFormat
from pipeline.samples.mixture import PartDocuments, Split, StoreShare, select_by_language, select_documents
from pipeline.samples.reading import Format, Relation
from pipeline.samples.rows import ShuffledRows


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the mixture, a store share or its documents in one language: known before the first sample is read."""

    share: int
    """Number of the store share."""
    weight: float
    """Share of the samples, relative to the other parts."""
    lang: str | None
    """The language of its documents; None if languages are not kept apart."""
    num_documents: int
    num_rows: int
    """Rows of each of its epochs."""


IndexMaker = Callable[[int], ShuffledRows]
"""Makes the index of an epoch of a part."""


@dataclass(frozen=True, slots=True)
class Cutter:
    """Chooses documents and cuts them into rows; the fields are the arguments of `TokenDataset`."""

    shares: Sequence[StoreShare]
    sequence_length: int
    seed: int
    held_out: float
    split: Split
    format: Format
    relation: Relation | None
    by_language: bool
    """Whether every part is in one language."""
    language_temperature: float | None
    shared_targets: bool

    def cut(self) -> list[tuple[Part, IndexMaker]]:
        """Cut every part's documents into rows.

        A language that gives no sample is left out of the held-out split; elsewhere that is an error.

        Raises:
            ConfigError: as `TokenDataset` does.
        """
        found: list[tuple[Part, IndexMaker]] = []
        problems: list[ConfigError] = []
        for share, documents, weight, lang in self._documents():
            store = self.shares[share].store
            order = StoreOrder(store.fingerprint, self.seed)
            name = f"the {self.split.replace('_', '-')} documents{f' in {lang}' if lang else ''} of {store.place}"
            given = FormatInput(
                store.lengths,
                store.arrays,
                documents,
                self.sequence_length,
                order,
                name,
                self.relation,
                self.shared_targets,
            )
            try:
                rows = _cut(self.format, given)
            except ConfigError as problem:
                if lang is None or self.split == "train":
                    raise
                problems.append(problem)
                continue
            part = Part(share, float(weight), lang, len(documents), rows.num_rows)
            found.append((part, _index_maker(rows, order)))
        if not found and problems:
            raise problems[0]
        return found

    def _documents(self) -> list[PartDocuments]:
        if self.by_language:
            return select_by_language(self.shares, self.held_out, self.split, self.language_temperature)
        return select_documents(self.shares, self.held_out, self.split)


def _index_maker(rows: RowFormat, order: StoreOrder) -> IndexMaker:
    return lambda epoch: ShuffledRows(rows.epoch(epoch), order.rows(epoch, rows.num_rows))


def _cut(format: Format, given: FormatInput) -> RowFormat:
    rows = FORMATS[format](given)
    if rows.num_rows == 0:
        raise ConfigError(
            f"{given.name[0].upper()}{given.name[1:]} do not fill one sample of {given.length} tokens.",
            next_step="lower batch.sequence_length, change data.held_out, name the languages to read in"
            " data.stores, or prepare more text",
        )
    return rows
