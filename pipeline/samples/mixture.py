"""The mixture that samples are drawn from: shares of token stores, by language if wanted, and the schedule of turns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from cluster.artefacts.errors import ConfigError
from data_prep.token_store import TokenStore
from pipeline.samples.noise.noise import Noise
from pipeline.samples.rows import index_type

Split = Literal["train", "held_out"]
SCHEDULE_PERIOD = 1024
"""Samples after which the schedule repeats; weights are honoured to 1 / SCHEDULE_PERIOD."""


@dataclass(frozen=True, slots=True)
class StoreShare:
    """A token store, or its documents in some sources or languages, and its share of a mixture."""

    store: TokenStore
    weight: float = 1.0
    """Share of the samples, relative to the other stores."""
    sources: tuple[str, ...] | None = None
    """None takes all."""
    langs: tuple[str, ...] | None = None
    """ISO 639-1 codes; None takes all."""

    def documents(self, held_out: float, split: Split) -> np.ndarray:
        """[documents] int32 (int64 where numbers exceed it): ascending numbers of the split's documents.

        Raises:
            ConfigError: the store has no such source or language.
        """
        chosen = self.store.held_out(held_out)
        found = np.flatnonzero(chosen if split == "held_out" else ~chosen)
        return self._wanted(found.astype(index_type(self.store.num_documents)))

    def languages(self) -> list[str]:
        """ISO 639-1 codes of the languages of its documents, of both splits, in alphabetical order."""
        numbers, codes = self.store.langs()
        if self.sources is not None or self.langs is not None:
            numbers = numbers[self._wanted(np.arange(self.store.num_documents))]
        return sorted(codes[number] for number in _present(numbers))

    def _wanted(self, documents: np.ndarray) -> np.ndarray:
        """The documents that are in the wanted sources and languages."""
        for what, wanted, read in (
            ("source", self.sources, self.store.sources),
            ("language", self.langs, self.store.langs),
        ):
            if wanted is not None:
                numbers, names = read()
                documents = documents[_are_among(what, wanted, numbers[documents], names, self.store)]
        return documents


class PartDocuments(NamedTuple):
    """The documents of one part of the mixture."""

    share: int
    """Number of the store share that they belong to."""
    documents: np.ndarray
    """[documents] ascending numbers, as `StoreShare.documents` gives them."""
    weight: float
    """Share of the samples, relative to the other parts."""
    lang: str | None = None
    """The language of all documents; None if languages are not kept apart."""


def select_documents(shares: Sequence[StoreShare], held_out: float, split: Split) -> list[PartDocuments]:
    """The documents of every store share, languages together."""
    return [
        PartDocuments(number, each.documents(held_out, split), each.weight)
        for number, each in enumerate(shares)
    ]


def select_by_language(
    shares: Sequence[StoreShare], held_out: float, split: Split, temperature: float | None
) -> list[PartDocuments]:
    """The documents of every store share, divided by language.

    With a temperature T, languages are drawn in proportion to p ** T, where p is a language's share of the tokens as
    the weights of the stores have it (Liu et al. 2020, "Multilingual denoising pre-training", section 2.1); within a
    language, its stores keep their proportions. Without, every language keeps the share p.
    """
    found = [
        PartDocuments(whole.share, documents, whole.weight, lang)
        for whole in select_documents(shares, held_out, split)
        for lang, documents in _by_language(shares[whole.share].store, whole.documents)
    ]
    if not found:
        raise ConfigError(
            f"{shares[0].store.place} has no {split.replace('_', '-')} documents.",
            next_step="change data.held_out, or prepare more text",
        )
    shares_of_tokens = _shares_of_tokens(shares, found)
    by_lang: dict[str | None, float] = {}
    for one, p in zip(found, shares_of_tokens, strict=True):
        by_lang[one.lang] = by_lang.get(one.lang, 0.0) + p
    exponent = 1.0 if temperature is None else temperature
    return [
        one._replace(weight=p and p * by_lang[one.lang] ** (exponent - 1))
        for one, p in zip(found, shares_of_tokens, strict=True)
    ]


class Mixture:
    """A deterministic schedule: parts take turns in proportion to their weights."""

    def __init__(self, weights: Sequence[float], seed: int) -> None:
        shares = np.asarray(weights, dtype=np.float64)
        self._period = SCHEDULE_PERIOD if len(shares) > 1 else 1
        self._counts = _largest_remainder(shares / shares.sum(), self._period)
        turns = np.repeat(np.arange(len(shares)), self._counts)
        self._turns = turns[Noise.of("mixture", seed).permutation(self._period)]
        before = np.cumsum(self._turns[:, None] == np.arange(len(shares)), axis=0)
        self._earlier = before[np.arange(self._period), self._turns] - 1

    def locate(self, samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The part that gives each of the samples, and the number (0, 1, 2, ...) among that part's own; all int64."""
        if len(self._counts) == 1:
            return np.zeros_like(samples), samples
        cycles, turns = np.divmod(samples, self._period)
        parts = self._turns[turns]
        return parts, cycles * self._counts[parts] + self._earlier[turns]

    def samples_of(self, part: int, own: np.ndarray) -> np.ndarray:
        """int64: the samples that give a part's own numbers; the inverse of `locate`."""
        if len(self._counts) == 1:
            return own
        cycles, turns = np.divmod(own, self._counts[part])
        return cycles * self._period + np.flatnonzero(self._turns == part)[turns]


def _largest_remainder(shares: np.ndarray, total: int) -> np.ndarray:
    """Whole counts that add up to `total`, as near to `shares * total` as can be, and at least 1 each."""
    exact = shares * total
    counts = np.maximum(np.floor(exact).astype(np.int64), 1)
    while (excess := counts.sum() - total) != 0:
        error = exact - counts
        chosen = np.argmax(error) if excess < 0 else np.argmin(np.where(counts > 1, error, np.inf))
        counts[chosen] += -np.sign(excess)
    return counts


def _by_language(store: TokenStore, documents: np.ndarray) -> list[tuple[str, np.ndarray]]:
    """(ISO 639-1 code, documents) of every language, in alphabetical order."""
    numbers, codes = store.langs()
    own = numbers[documents]
    return [(code, documents[own == lang]) for code, lang in sorted((codes[n], n) for n in _present(own))]


def _shares_of_tokens(shares: Sequence[StoreShare], parts: Sequence[PartDocuments]) -> list[float]:
    """For every part, its share of the tokens of its store share, times the weight of the share."""
    tokens = [int(shares[one.share].store.lengths[one.documents].sum()) for one in parts]
    totals = [0] * len(shares)
    for one, count in zip(parts, tokens, strict=True):
        totals[one.share] += count
    total_weight = sum(each.weight for each in shares)
    return [
        shares[one.share].weight / total_weight * count / max(totals[one.share], 1)
        for one, count in zip(parts, tokens, strict=True)
    ]


def _present(numbers: np.ndarray) -> list[int]:
    """The different values among small numbers, ascending."""
    return np.flatnonzero(np.bincount(numbers)).tolist()


def _are_among(
    what: str, wanted: Sequence[str], numbers: np.ndarray, names: list[str], store: TokenStore
) -> np.ndarray:
    """[numbers] bool: whether `names[number]` is one of the wanted names."""
    if missing := sorted(set(wanted) - set(names)):
        raise ConfigError(
            f"{store.place} has no {what} {', '.join(missing)}; it has {', '.join(sorted(names))}.",
            next_step=f"correct `data.stores`, or prepare a store that has the {what}",
        )
    return np.isin(np.arange(len(names)), [names.index(name) for name in wanted])[numbers]
