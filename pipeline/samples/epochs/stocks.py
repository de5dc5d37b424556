"""What a dataset is drawn from: the documents of its split, cut into rows. Making it takes a look at each document."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cluster.artefacts.errors import ConfigError
from pipeline.samples.epochs.ingredients import Ingredient, Part, Split, parts_by_language, whole_parts
from pipeline.samples.epochs.laid_out import LaidOut
from pipeline.samples.epochs.order import StoreOrder
from pipeline.samples.formats.formats import LAYOUTS
from pipeline.samples.formats.material import Material
from pipeline.samples.reading import Format, Relation
from pipeline.samples.spans import Layout


@dataclass(frozen=True, slots=True)
class Outline:
    """What must be known of a stock before its first sample is read."""

    ingredient: int
    """Number of the ingredient that it belongs to."""
    weight: float
    """Share of the samples, relative to the other stocks."""
    lang: str | None
    """The language of its documents; None where languages are not kept apart."""
    num_documents: int
    num_rows: int
    """Rows of each of its epochs."""


@dataclass(frozen=True, slots=True)
class Stock:
    """What one part of the mixture is read from."""

    part: Part
    order: StoreOrder
    layout: Layout

    @property
    def outline(self) -> Outline:
        """What is known of it in few words."""
        part = self.part
        return Outline(
            part.ingredient, float(part.weight), part.lang, len(part.documents), self.layout.num_rows
        )

    def lay_out(self, epoch: int) -> LaidOut:
        """The samples of an epoch."""
        return LaidOut(self.layout.epoch(epoch), self.order.rows(epoch, self.layout.num_rows))


@dataclass(frozen=True, slots=True)
class Cutting:
    """How documents are chosen and cut into rows; the fields are those of `TokenDataset`."""

    ingredients: Sequence[Ingredient]
    sequence_length: int
    seed: int
    held_out: float
    split: Split
    format: Format
    relation: Relation | None
    by_language: bool
    """Whether every stock is of one language."""
    language_temperature: float | None

    def stocks(self) -> list[Stock]:
        """Cut every part's documents into rows.

        A language that gives no sample is left out of the held-out split; elsewhere that is an error.

        Raises:
            ConfigError: as `TokenDataset` does.
        """
        texts = [each.store.arrays() for each in self.ingredients]
        stocks: list[Stock] = []
        problems: list[ConfigError] = []
        for part in self._parts():
            store, text = self.ingredients[part.ingredient].store, texts[part.ingredient]
            order = StoreOrder(store.fingerprint, self.seed)
            lang = f" in {part.lang}" if part.lang else ""
            name = f"the {self.split.replace('_', '-')} documents{lang} of {store.path}"
            material = Material(text, part.documents, self.sequence_length, order, name, self.relation)
            try:
                stocks.append(Stock(part, order, _layout(self.format, material)))
            except ConfigError as problem:
                if part.lang is None or self.split == "train":
                    raise
                problems.append(problem)
        if not stocks and problems:
            raise problems[0]
        return stocks

    def _parts(self) -> list[Part]:
        if self.by_language:
            return parts_by_language(self.ingredients, self.held_out, self.split, self.language_temperature)
        return whole_parts(self.ingredients, self.held_out, self.split)


def _layout(format: Format, material: Material) -> Layout:
    layout = LAYOUTS[format](material)
    if layout.num_rows == 0:
        raise ConfigError(
            f"{material.name[0].upper()}{material.name[1:]} do not fill one sample of {material.length} tokens.",
            next_step="lower batch.sequence_length, change data.held_out, name the languages to read in"
            " data.stores, or prepare more text",
        )
    return layout
