"""What is mixed: token stores, the documents of them that a run reads, and the share of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from cluster.artefacts.errors import ConfigError
from data_prep.token_store import TokenStore

Split = Literal["train", "held_out"]


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
        return self._wanted(np.flatnonzero(chosen if split == "held_out" else ~chosen))

    def languages(self) -> list[str]:
        """ISO 639-1 codes of the languages of its documents, of both splits, in alphabetical order."""
        numbers, codes = self.store.langs()
        if self.sources is not None or self.langs is not None:
            numbers = numbers[self._wanted(np.arange(self.store.num_documents))]
        return sorted(codes[number] for number in _present(numbers))

    def _wanted(self, documents: np.ndarray) -> np.ndarray:
        """Those of the documents that are in its sources and languages."""
        for what, wanted, told in (
            ("source", self.sources, self.store.sources),
            ("language", self.langs, self.store.langs),
        ):
            if wanted is not None:
                numbers, names = told()
                documents = documents[_are_among(what, wanted, numbers[documents], names, self.store)]
        return documents


@dataclass(frozen=True, slots=True)
class Part:
    """Documents that share rows."""

    ingredient: int
    """Number of the ingredient that they belong to."""
    documents: np.ndarray
    """[documents] int64 ascending numbers."""
    weight: float
    """Share of the samples, relative to the other parts."""
    lang: str | None = None
    """The language of them all; None where languages are not kept apart."""


def whole_parts(ingredients: Sequence[Ingredient], held_out: float, split: Split) -> list[Part]:
    """Every ingredient as it is."""
    return [
        Part(number, each.documents(held_out, split), each.weight) for number, each in enumerate(ingredients)
    ]


def parts_by_language(
    ingredients: Sequence[Ingredient], held_out: float, split: Split, temperature: float | None
) -> list[Part]:
    """Every ingredient divided by language.

    With a temperature T, languages are drawn in proportion to p ** T, where p is a language's share of the tokens as
    the weights of the ingredients have it (Liu et al. 2020, "Multilingual denoising pre-training", section 2.1);
    within a language, its ingredients keep their proportions. Without, every language keeps the share p.
    """
    parts = [
        part
        for number, each in enumerate(ingredients)
        for part in _by_language(number, each, each.documents(held_out, split))
    ]
    if not parts:
        raise ConfigError(
            f"{ingredients[0].store.path} has no {split.replace('_', '-')} documents.",
            next_step="change data.held_out, or prepare more text",
        )
    shares = _shares_of_tokens(ingredients, parts)
    by_lang: dict[str | None, float] = {}
    for part, share in zip(parts, shares, strict=True):
        by_lang[part.lang] = by_lang.get(part.lang, 0.0) + share
    exponent = 1.0 if temperature is None else temperature
    return [
        Part(
            part.ingredient, part.documents, share and share * by_lang[part.lang] ** (exponent - 1), part.lang
        )
        for part, share in zip(parts, shares, strict=True)
    ]


def _by_language(number: int, ingredient: Ingredient, documents: np.ndarray) -> list[Part]:
    numbers, codes = ingredient.store.langs()
    own = numbers[documents]
    present = sorted((codes[lang], lang) for lang in _present(own))
    return [Part(number, documents[own == lang], 1.0, code) for code, lang in present]


def _shares_of_tokens(ingredients: Sequence[Ingredient], parts: Sequence[Part]) -> list[float]:
    """Of every part: its share of its ingredient's tokens, times the share of the ingredient."""
    tokens = [int(ingredients[part.ingredient].store.lengths[part.documents].sum()) for part in parts]
    totals = [0] * len(ingredients)
    for part, count in zip(parts, tokens, strict=True):
        totals[part.ingredient] += count
    total_weight = sum(each.weight for each in ingredients)
    return [
        ingredients[part.ingredient].weight / total_weight * count / max(totals[part.ingredient], 1)
        for part, count in zip(parts, tokens, strict=True)
    ]


def _present(numbers: np.ndarray) -> list[int]:
    """The different ones of some small numbers, ascending."""
    return np.flatnonzero(np.bincount(numbers)).tolist()


def _are_among(
    what: str, wanted: Sequence[str], numbers: np.ndarray, names: list[str], store: TokenStore
) -> np.ndarray:
    """[numbers] bool: which of them number one of the wanted names."""
    if missing := sorted(set(wanted) - set(names)):
        raise ConfigError(
            f"{store.path} has no {what} {', '.join(missing)}; it has {', '.join(sorted(names))}.",
            next_step=f"correct `data.stores`, or prepare a store that has the {what}",
        )
    return np.isin(np.arange(len(names)), [names.index(name) for name in wanted])[numbers]
