"""Is the sentence in order, or were its halves exchanged? Made from documents held out of pre-training.

Every sentence occurs twice on its side, in order and disordered, so that neither counting words nor remembering
sentences scores more than 50%: the task needs word order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pipeline.road.demo.tasks.held_out_sentences import HeldOutTaskConfig, Sentence, read_sentences, too_few
from pipeline.samples.noise.noise import Noise
from pipeline.tune.forms.classification.settings import ClassificationTaskConfig, Example
from pipeline.tune.task import TaskData

LABELS = ("disordered", "in_order")
_PUNCTUATION = ".,;:!?"


class DocstringWordOrderConfig(HeldOutTaskConfig, ClassificationTaskConfig):
    """Classification of sentences as in order or disordered; both are equally frequent."""

    kind: Literal["docstring_word_order"] = "docstring_word_order"

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


def exchange_halves(words: Sequence[str], noise: Noise) -> list[str] | None:
    """Put the end of a sentence before its beginning; its first and its last word stay, because single words there
    would tell the order.

    Args:
        noise: scalar; decides where, in the middle third, the sentence is cut.

    Returns:
        The words in their new order, or None where every cut would leave punctuation inside or change nothing.
    """
    first, last = len(words) // 3, len(words) - len(words) // 3
    cuts = [place for place in range(max(2, first), last) if words[place - 1][-1] not in _PUNCTUATION]
    if not cuts:
        return None
    cut = cuts[int(noise.integers(len(cuts)))]
    moved = [words[0], *words[cut:-1], *words[1:cut], words[-1]]
    return None if moved == list(words) else moved


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
        disordered = exchange_halves(words, Noise.of("word-order", sentence.id))
        if disordered is None:
            continue
        examples += [
            Example(f"{sentence.id}-{name}", " ".join(found), None, label)
            for label, (name, found) in enumerate(zip(LABELS, (disordered, words), strict=True))
        ]
        if len(examples) >= count:
            return tuple(examples[:count])
    raise too_few(config, f"{count} examples are needed on one side", f"{len(examples)}")
