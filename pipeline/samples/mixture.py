"""The mixture that samples are drawn from: shares of token stores, by language if wanted, cut into rows, and the
schedule of turns.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from cluster.artefacts.errors import ConfigError
from data_prep.token_store import TokenStore
from pipeline.samples.formats import FORMATS, Format
from pipeline.samples.noise import Noise
from pipeline.samples.packed import EpochRows, FormatInput, Relation, RowFormat
from pipeline.samples.shuffle import StoreOrder, index_type

Split = Literal["train", "held_out"]
_HALF_BITS = 31
_WHOLE = 1 << 2 * _HALF_BITS
"""Shares are whole numbers of this."""


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
        """[documents] int32 (int64 where indices exceed it): ascending indices of the split's documents.

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
            if wanted is None:
                continue
            numbers, names = read()
            if missing := sorted(set(wanted) - set(names)):
                raise ConfigError(
                    f"{self.store.place} has no {what} {', '.join(missing)}; it has {', '.join(sorted(names))}.",
                    next_step=f"correct `data.stores`, or prepare a store that has the {what}",
                )
            is_wanted = np.isin(np.arange(len(names)), [names.index(name) for name in wanted])
            documents = documents[is_wanted[numbers[documents]]]
        return documents


def _present(numbers: np.ndarray) -> list[int]:
    """The different values among small numbers, ascending."""
    return np.flatnonzero(np.bincount(numbers)).tolist()


class Mixture:
    """A deterministic schedule: parts take turns, so that after any number of samples each has given its share of them.

    The parts are the leaves of a binary tree. Of the first n samples of a node, its left child gives n times its share
    of the node's weight, rounded to the nearest. A part is thus never further from its exact share than half a sample
    for every level of the tree, and every sample is found without the ones before it.
    """

    def __init__(self, weights: Sequence[float], seed: int) -> None:
        """
        Args:
            weights: shares of the samples, relative to each other; at least one is above 0.
            seed: which parts begin.
        """
        self._order = Noise.of("mixture", seed).permutation(len(weights))
        self._levels = (len(weights) - 1).bit_length()
        leaves = 1 << self._levels
        # The children of node k are 2 k and 2 k + 1; the leaves, some of them without a part, are the last half.
        totals = np.zeros(2 * leaves)
        totals[leaves : leaves + len(weights)] = np.asarray(weights, dtype=np.float64)[self._order]
        for node in reversed(range(1, leaves)):
            totals[node] = totals[2 * node] + totals[2 * node + 1]
        left = totals[2 : 2 * leaves : 2] / np.maximum(totals[1:leaves], np.finfo(np.float64).tiny)
        self._left = np.array([0, *(int(share * _WHOLE) for share in left)], dtype=np.int64)

    def locate(self, samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The part that gives each of the samples, and the number (0, 1, 2, ...) among that part's own; all int64."""
        nodes, own = np.ones_like(samples), samples
        for _ in range(self._levels):
            left = _multiplied(own, self._left[nodes])
            is_right = _multiplied(own + 1, self._left[nodes]) == left
            nodes, own = 2 * nodes + is_right, np.where(is_right, own - left, left)
        return self._order[nodes - (1 << self._levels)], own

    def samples_of(self, part: int, own: np.ndarray) -> np.ndarray:
        """int64: the samples that give a part's own numbers; the inverse of `locate`, and huge where none does."""
        found = own.astype(object)  # Python's integers: the products need more than 64 bits.
        node = (1 << self._levels) + int(np.flatnonzero(self._order == part)[0])
        while node > 1:
            left, halves = int(self._left[node // 2]), (2 * found + 1) * (_WHOLE // 2)
            # A part without weight comes after all samples.
            found = halves // max(_WHOLE - left, 1) if node % 2 else -(-halves // max(left, 1)) - 1
            node //= 2
        return np.minimum(found, np.iinfo(np.int64).max).astype(np.int64)


def _multiplied(counts: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """int64: `counts * shares / _WHOLE`, rounded half up, without overflow (uint64 holds every product of halves)."""
    (high, low), (share_high, share_low) = (
        np.divmod(each.astype(np.uint64), np.uint64(1 << _HALF_BITS)) for each in (counts, shares)
    )
    shift, half = np.uint64(_HALF_BITS), np.uint64(1 << (_HALF_BITS - 1))
    middle = high * share_low + low * share_high + (low * share_low >> shift) + half
    return (high * share_high + (middle >> shift)).astype(np.int64)


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the mixture, a store share or its documents in one language: known before the first sample is read."""

    share: int
    """Index of the store share."""
    weight: float
    """Share of the samples, relative to the other parts."""
    lang: str | None
    """The language of its documents; None if languages are not kept apart."""
    num_documents: int
    num_rows: int
    """Rows of each of its epochs."""


IndexMaker = Callable[[int], EpochRows]
"""Makes the rows of an epoch of a part, shuffled."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a `TokenDataset` makes samples of documents."""

    sequence_length: int
    """Positions of a sample."""
    seed: int
    held_out: float
    split: Split = "train"
    format: Format = "contiguous"
    """How samples are cut from documents."""
    relation: Relation | None = None
    """Relation of the segments of a pair; required by formats of pairs, and None for all others."""
    attention: Literal["documents", "full"] = "documents"
    """With "full", `Packed.cu_seqlens` holds the boundaries of rows, not of the pieces in them."""
    pad: int | None = None
    """Id of padding; None takes the padding of the stores."""
    with_sentence_starts: bool = False
    """Fill in `Packed.sentence_starts`."""
    with_langs: bool = False
    """Keep every sample in one language, and fill in `Packed.langs`. Languages that fill no sample of the held-out
    split are left out of it."""
    source_names: Sequence[str] | None = None
    """The sources that `Packed.sources` numbers; documents of other sources count as of none. The names are given,
    because phases of a run with fewer stores must have the same numbers. None leaves `Packed.sources` out. Samples are
    the same in any case."""
    language_temperature: float | None = None
    """The exponent that evens out the shares of languages, such as 0.7; also keeps every sample in one language. None:
    every language has its share of the tokens."""
    shared_targets: bool = False
    """Whether all pairs of a document aim at one length, in the format `segment_pair`."""

    @property
    def by_language(self) -> bool:
        """Whether every part is in one language."""
        return self.with_langs or self.language_temperature is not None


def cut_parts(shares: Sequence[StoreShare], sampling: Sampling) -> list[tuple[Part, IndexMaker]]:
    """Cut every part's documents into rows.

    A language that gives no sample is left out of the held-out split; elsewhere that is an error.
    """
    found: list[tuple[Part, IndexMaker]] = []
    problems: list[ConfigError] = []
    for share, documents, weight, lang in _documents(shares, sampling):
        store = shares[share].store
        order = StoreOrder(store.fingerprint, sampling.seed)
        name = f"the {sampling.split.replace('_', '-')} documents{f' in {lang}' if lang else ''} of {store.place}"
        given = FormatInput(
            store.lengths,
            store.arrays,
            documents,
            sampling.sequence_length,
            order,
            name,
            sampling.relation,
            sampling.shared_targets,
        )
        try:
            rows = FORMATS[sampling.format](given)
            if rows.num_rows == 0:
                raise ConfigError(
                    f"{name[0].upper()}{name[1:]} do not fill one sample of {given.length} tokens.",
                    next_step="lower batch.sequence_length, change data.held_out, name the languages to read in"
                    " data.stores, or prepare more text",
                )
        except ConfigError as problem:
            if lang is None or sampling.split == "train":
                raise
            problems.append(problem)
            continue

        def make(epoch: int, rows: RowFormat = rows, order: StoreOrder = order) -> EpochRows:
            return replace(rows.epoch(epoch), order=order.rows(epoch, rows.num_rows))

        found.append((Part(share, float(weight), lang, len(documents), rows.num_rows), make))
    if not found and problems:
        raise problems[0]
    return found


def _documents(
    shares: Sequence[StoreShare], sampling: Sampling
) -> list[tuple[int, np.ndarray, float, str | None]]:
    """(index of the share, documents, weight, language) of every part.

    With a temperature T, languages are drawn in proportion to p ** T, where p is a language's share of the tokens
    as the weights of the stores have it (Liu et al. 2020, "Multilingual denoising pre-training", section 2.1);
    within a language, its stores keep their proportions. Without, every language keeps the share p.
    """
    whole = [each.documents(sampling.held_out, sampling.split) for each in shares]
    if not sampling.by_language:
        return [(k, documents, shares[k].weight, None) for k, documents in enumerate(whole)]
    found: list[tuple[int, np.ndarray, float, str]] = []
    by_lang: dict[str, float] = defaultdict(float)
    total_weight = sum(each.weight for each in shares)
    for share, documents in enumerate(whole):
        store, weight = shares[share].store, shares[share].weight
        numbers, codes = store.langs()
        own, num_tokens = numbers[documents], int(store.lengths[documents].sum())
        for lang, number in sorted((codes[number], number) for number in _present(own)):
            chosen = documents[own == number]
            p = weight / total_weight * int(store.lengths[chosen].sum()) / max(num_tokens, 1)
            by_lang[lang] += p
            found.append((share, chosen, p, lang))
    if not found:
        raise ConfigError(
            f"{shares[0].store.place} has no {sampling.split.replace('_', '-')} documents.",
            next_step="change data.held_out, or prepare more text",
        )
    exponent = 1.0 if sampling.language_temperature is None else sampling.language_temperature
    return [
        (share, documents, p and p * by_lang[lang] ** (exponent - 1), lang)
        for share, documents, p, lang in found
    ]
