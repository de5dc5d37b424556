"""Words and pairs of words with their labels, and the labels of control tasks."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import numpy as np

from pipeline.ask.probing.features import WORD, FeatureNetwork, Passage, Span, word_vectors
from pipeline.tune.batches import sample_examples
from pipeline.tune.tasks.forms import Example, TaggedSentence


@dataclass(frozen=True, slots=True)
class Items:
    """Examples that a probe classifies: each word of some sentences, or each pair of sentences."""

    passages: tuple[Passage, ...]
    """Two side by side for each pair."""
    labels: np.ndarray
    """int64 [items]."""
    words: tuple[str, ...]
    """Per item its word, which decides the label of the control task."""
    are_pairs: bool


@dataclass(frozen=True, slots=True)
class Features:
    """Items as a probe sees them."""

    vectors: np.ndarray
    """float32 [layers, items, width]."""
    labels: np.ndarray
    """int64 [items]."""
    words: tuple[str, ...]


def tagged_words(sentences: Sequence[TaggedSentence], labels: Sequence[str]) -> Items:
    """Every word with its tag."""
    numbers = {label: number for number, label in enumerate(labels)}
    return Items(
        passages=tuple(Passage.of_words(sentence.words) for sentence in sentences),
        labels=np.array([numbers[tag] for each in sentences for tag in each.tags], dtype=np.int64),
        words=tuple(word for sentence in sentences for word in sentence.words),
        are_pairs=False,
    )


def word_pairs(examples: Sequence[Example], labels: Sequence[str]) -> Items:
    """A word in two sentences, of WiC. Where the word itself does not occur, its form with the longest common beginning
    does."""
    passages, words = [], []
    for example in examples:
        word, _, first = example.text_a.partition(": ")
        words.append(word)
        passages += [Passage(text, (find_form(text, word),)) for text in (first, example.text_b or "")]
    labels_of = np.array([int(example.label) for example in examples], dtype=np.int64)
    return Items(tuple(passages), labels_of, tuple(words), True)


def find_form(text: str, word: str) -> Span:
    """The characters of a word, or of the word most like it; the whole text where none begins alike."""
    spans = [match.span() for match in WORD.finditer(text)]
    alike = [_common_beginning(text[start:stop].lower(), word.lower()) for start, stop in spans]
    exact = [span for span in spans if text[span[0] : span[1]].lower() == word.lower()]
    if exact:
        return exact[0]
    best = max(alike, default=0)
    return spans[alike.index(best)] if best else (0, len(text))


def _common_beginning(first: str, second: str) -> int:
    """Characters that two words begin with alike."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))


ITEMS: dict[str, Callable[[Sequence[Any], Sequence[str]], Items]] = {
    "tags": tagged_words,
    "classification": word_pairs,
}
"""By form of task: (examples, labels) to items."""


def make_items(form: str, examples: Sequence[Any], labels: Sequence[str], limit: int | None) -> Items:
    """The items of a fixed random sample of `limit` examples."""
    return ITEMS[form]([examples[number] for number in sample_examples(len(examples), limit)], labels)


def make_features(network: FeatureNetwork, items: Items, layers: Sequence[int]) -> Features:
    """Hidden states of words; of a pair |u - v| and u * v side by side (Conneau et al. 2017, section 3.1). Words
    outside the part of a sentence that the network reads are left out."""
    vectors = word_vectors(network, items.passages, layers)
    if items.are_pairs:
        first, second = vectors[:, 0::2], vectors[:, 1::2]
        vectors = np.concatenate([np.abs(first - second), first * second], -1)
    kept = np.flatnonzero(np.isfinite(vectors).all((0, 2)))
    return Features(vectors[:, kept], items.labels[kept], tuple(items.words[number] for number in kept))


def control_labels(words: Sequence[str], frequencies: np.ndarray, seed: int) -> np.ndarray:
    """int64 [words]: a random label for each different word, drawn by the frequencies of the task's labels (Hewitt and
    Liang 2019, section 2); a function of (seed, word)."""
    bounds = np.cumsum(frequencies / frequencies.sum())[:-1]
    drawn = {word: np.searchsorted(bounds, _uniform(seed, word), "right") for word in set(words)}
    return np.array([drawn[word] for word in words], dtype=np.int64)


def _uniform(seed: int, word: str) -> float:
    """A number in [0, 1)."""
    digest = hashlib.blake2b(f"{seed}/{word}".encode(errors="surrogatepass"), digest_size=6).digest()
    return int.from_bytes(digest, "little") / 2**48
