"""Is the sentence in order, or were its words moved? Made from documents held out of pre-training.

Every sentence occurs twice on its side, in order and disordered. So neither counting words nor remembering
sentences scores more than 50%: the task needs word order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import numpy as np
from pydantic import Field

from pipeline.demo.tasks.held_out_sentences import (
    HeldOutTaskConfig,
    Sentence,
    read_sentences,
    too_few,
)
from pipeline.finetune.forms.classification.settings import Example
from pipeline.finetune.task import TaskData
from pipeline.samples.noise.noise import Noise

LABELS = ("disordered", "in_order")
_PUNCTUATION = ".,;:!?"

Disorder = Literal["halves", "neighbours"]


class DocstringWordOrderConfig(HeldOutTaskConfig):
    """Classification of sentences as in order or disordered; both equally frequent."""

    kind: Literal["docstring_word_order"] = "docstring_word_order"
    disorder: Disorder = "halves"
    """How sentences are disordered: `halves` puts the end before the beginning, which a network
    after minutes of pre-training can tell; `neighbours` exchanges neighbouring words, which is harder."""
    share: float = Field(default=1.0, gt=0, le=1)
    """Share of the neighbouring pairs that `neighbours` exchanges, at least one; lower is harder."""

    metrics = ("accuracy", "matthews")

    def load(self) -> TaskData[Example]:
        """Make the examples.

        Raises:
            ConfigError: there are too few sentences.
        """
        sentences = read_sentences(self)
        return TaskData(
            train=_examples(sentences.train, self.train_examples, self),
            evaluation=_examples(sentences.evaluation, self.evaluation_examples, self),
            labels=LABELS,
            inputs=sentences.inputs,
        )


def exchange_halves(words: Sequence[str], share: float, noise: Noise) -> list[str] | None:
    """Put the end of a sentence before its beginning.

    Args:
        share: not used.
        noise: scalar; decides where, in the middle third, the sentence is cut.

    Returns:
        The words in their new order, or None where no place to cut exists that leaves punctuation inside.
    """
    first, last = len(words) // 3, len(words) - len(words) // 3
    cuts = [place for place in range(max(1, first), last) if words[place - 1][-1] not in _PUNCTUATION]
    if not cuts:
        return None
    cut = cuts[int(noise.integers(len(cuts)))]
    return [*words[cut:], *words[:cut]]


def exchange_neighbours(words: Sequence[str], share: float, noise: Noise) -> list[str] | None:
    """Exchange `share` of the disjoint neighbouring pairs inside a sentence, at least one.

    The first and the last word stay, because they are the easiest to know.

    Args:
        noise: scalar; decides which pairs are exchanged.

    Returns:
        The words in their new order, or None where no pair of differing words exists.
    """
    first = 1 + int(noise.at("offset").integers(2))
    starts = [i for i in range(first, len(words) - 2, 2) if words[i].lower() != words[i + 1].lower()]
    if not starts:
        return None
    moved = list(words)
    count = max(1, round(share * len(starts)))
    for chosen in np.asarray(starts)[noise.at("pairs").permutation(len(starts))[:count]]:
        moved[chosen], moved[chosen + 1] = moved[chosen + 1], moved[chosen]
    return moved


DISORDERS: Mapping[Disorder, Callable[[Sequence[str], float, Noise], list[str] | None]] = {
    "halves": exchange_halves,
    "neighbours": exchange_neighbours,
}


def _plain_words(text: str) -> list[str]:
    """The words without the capital at the start and the punctuation at the end, which would tell the order."""
    return f"{text[0].lower()}{text[1:]}".rstrip(_PUNCTUATION).split()


def _examples(
    sentences: Sequence[Sentence], count: int, config: DocstringWordOrderConfig
) -> tuple[Example, ...]:
    """`count` examples, in pairs of a disordered and the same ordered sentence."""
    examples: list[Example] = []
    for sentence in sentences:
        words = _plain_words(sentence.text)
        noise = Noise.of("word-order", config.disorder, sentence.id)
        disordered = DISORDERS[config.disorder](words, config.share, noise)
        if disordered is None:
            continue
        examples += [
            Example(f"{sentence.id}-{name}", " ".join(found), None, label)
            for label, (name, found) in enumerate(zip(LABELS, (disordered, words), strict=True))
        ]
        if len(examples) >= count:
            return tuple(examples[:count])
    raise too_few(config, f"{count} examples are needed on one side", f"{len(examples)}")
