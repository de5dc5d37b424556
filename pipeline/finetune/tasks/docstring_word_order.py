"""Is the sentence intact, or were neighbouring words swapped? Made from documents held out of pre-training.

Intact and corrupted sentences hold the same words, so counting words scores 50%: the task needs word order.
A check on syntax that a network can only learn from few labels when pre-training has taught it word order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from pydantic import Field

from pipeline.batches.noise import Noise
from pipeline.finetune.tasks.base import Example, TaskData
from pipeline.finetune.tasks.held_out_sentences import (
    HeldOutTaskConfig,
    Sentence,
    read_sentences,
    too_few,
)

METRICS = ("accuracy", "matthews")
LABELS = ("swapped", "intact")


class DocstringWordOrderConfig(HeldOutTaskConfig):
    """Classification of sentences as intact or with neighbouring words swapped; both equally frequent."""

    kind: Literal["docstring_word_order"] = "docstring_word_order"
    swapped_share: float = Field(default=0.5, gt=0, le=1)
    """Share of the neighbouring pairs that change places in a corrupted sentence, at least one; 1 swaps every
    two words. Lower is harder."""


def load(config: DocstringWordOrderConfig) -> TaskData:
    """Make the examples; each sentence occurs once, intact or corrupted.

    Raises:
        ConfigError: there are too few sentences.
    """
    sentences = read_sentences(config)
    return TaskData(
        train=_examples(sentences.train, config.train_examples, config),
        evaluation=_examples(sentences.evaluation, config.evaluation_examples, config),
        labels=LABELS,
        inputs=sentences.inputs,
    )


def swap_neighbours(text: str, share: float, noise: Noise) -> str | None:
    """Exchange `share` of the disjoint neighbouring pairs inside a sentence, at least one.

    The first and the last word stay, because capital and full stop would give the corruption away.

    Args:
        noise: scalar; the choice of pairs is a function of it.

    Returns:
        The corrupted text, or None where no pair of differing words exists.
    """
    words = text.split()
    first = 1 + int(noise.at("offset").integers(2))
    starts = [i for i in range(first, len(words) - 2, 2) if words[i].lower() != words[i + 1].lower()]
    if not starts:
        return None
    count = max(1, round(share * len(starts)))
    for chosen in np.asarray(starts)[noise.at("pairs").permutation(len(starts))[:count]]:
        words[chosen], words[chosen + 1] = words[chosen + 1], words[chosen]
    return " ".join(words)


def _examples(
    sentences: Sequence[Sentence], count: int, config: DocstringWordOrderConfig
) -> tuple[Example, ...]:
    """`count` examples, alternately intact and corrupted over the shuffled sentences."""
    examples: list[Example] = []
    for sentence in sentences:
        # Also asked of sentences that stay intact, so that both labels come from the same sentences.
        swapped = swap_neighbours(sentence.text, config.swapped_share, Noise.of("word-order", sentence.id))
        if swapped is None:
            continue
        label = len(examples) % 2
        examples.append(Example(sentence.id, sentence.text if label else swapped, None, label))
        if len(examples) == count:
            return tuple(examples)
    raise too_few(config, f"{count} sentences are needed on one side", f"{len(examples)}")
