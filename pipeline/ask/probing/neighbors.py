"""The occurrences of a word that a network sees as most alike (as in Peters et al. 2018, table 4)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from cluster.artefacts.errors import ConfigError, MissingInputError
from pipeline.ask.probing.features import FeatureNetwork, Passage, Span, word_vectors
from pipeline.tasks.files.lines import read_lines
from pipeline.tasks.metrics.texts import sentences

MOST_OCCURRENCES = 5000
"""Occurrences that are compared, the first of the file."""


@dataclass(frozen=True, slots=True)
class Occurrence:
    """A word in a sentence of a file."""

    number: int
    """From 1, in the order of the file."""
    place: str
    """File and line, such as `news-17`."""
    sentence: str
    span: Span
    """Characters of the sentence."""

    @property
    def marked(self) -> str:
        """The sentence with the word between asterisks."""
        start, stop = self.span
        return f"{self.sentence[:start]}*{self.sentence[start:stop]}*{self.sentence[stop:]}"


@dataclass(frozen=True, slots=True)
class Neighbor:
    """Another occurrence, and how alike the network sees it."""

    occurrence: Occurrence
    cosine: float


@dataclass(frozen=True, slots=True)
class Neighbors:
    """The occurrences most like a chosen one."""

    layer: int
    chosen: Occurrence
    nearest: tuple[Neighbor, ...]
    num_occurrences: int
    """Occurrences that were compared, the chosen one included."""


def find_occurrences(path: Path, word: str, most: int = MOST_OCCURRENCES) -> list[Occurrence]:
    """The sentences of a file with a word by itself, in upper or lower case.

    Raises:
        MissingInputError: there is no such file.
        ConfigError: a line is not UTF-8, the word is empty, or it occurs nowhere.
    """
    if not path.is_file():
        raise MissingInputError(
            f"There is no text file {path}.",
            next_step="name a text file, with a sentence or a paragraph in each line",
        )
    if not word.strip():
        raise ConfigError("The word is empty.", next_step="give one: --word play")
    pattern = re.compile(rf"(?<!\w){re.escape(word.strip())}(?!\w)", re.IGNORECASE)
    matches = (
        (place, sentence, match.span())
        for place, line in read_lines(path)
        if pattern.search(line)
        for sentence in sentences([line])[0]
        for match in pattern.finditer(sentence)
    )
    found = [Occurrence(number, *match) for number, match in enumerate(islice(matches, most), 1)]
    if not found:
        raise ConfigError(
            f"The word {word.strip()!r} does not occur in {path}.",
            next_step="name a word of the text; its other forms, such as plurals, are other words",
        )
    return found


def find_neighbors(
    network: FeatureNetwork,
    occurrences: Sequence[Occurrence],
    chosen: int = 1,
    layer: int = -1,
    top: int = 10,
) -> Neighbors:
    """The occurrences whose vectors have the highest cosine with the vector of the chosen one; equal ones in the order
    of the file.

    Args:
        chosen: number of an occurrence, from 1.
        layer: number from 0, the embeddings; -1 is the last.

    Raises:
        ConfigError: there is no such occurrence, or no second one.
        MismatchError: there is no such layer.
    """
    count = len(occurrences)
    if not 1 <= chosen <= count:
        raise ConfigError(
            f"There is no occurrence {chosen}: the word occurs {count} times.",
            next_step=f"--occurrence may be from 1 to {count}",
        )
    if count == 1:
        raise ConfigError(
            f"The word occurs once only, in {occurrences[0].place}.",
            next_step="name a word that occurs more often, or a larger text",
        )
    number = network.layer(layer)
    passages = [Passage(each.sentence, (each.span,)) for each in occurrences]
    vectors = word_vectors(network, passages, [number])[0].astype(np.float64)
    norms = np.linalg.norm(vectors, axis=1)
    cosines = vectors @ vectors[chosen - 1] / np.maximum(norms * norms[chosen - 1], 1e-12)
    cosines = np.where(np.isnan(cosines), -np.inf, cosines)
    order = [int(n) for n in np.argsort(-cosines, kind="stable") if n != chosen - 1 and cosines[n] > -np.inf]
    nearest = tuple(Neighbor(occurrences[n], float(cosines[n])) for n in order[:top])
    return Neighbors(number, occurrences[chosen - 1], nearest, count)
