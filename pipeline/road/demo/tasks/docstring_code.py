"""Which words of a docstring sentence are code? Its authors marked them with backquotes, which are taken away.

Made from documents held out of pre-training. Labels are few and code is seldom spelt twice in the same way: a network
that has read such text before knows the words that the labelled sentences lack, and the places where code stands.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from pipeline.road.demo.tasks.held_out_sentences import HeldOutTaskConfig, Sentence, read_sentences, too_few
from pipeline.tune.files.tag_schemes import OUTSIDE
from pipeline.tune.forms.tags.settings import TaggedSentence, TagsTaskConfig
from pipeline.tune.task import TaskData

CODE = "B-code"
"""Every word of code is an entity of its own."""
_MARKED = re.compile(r"[(\[]*(?::\w+:)?(?P<marks>`+)(?P<code>[^`]+)(?P=marks)(?:s|_)*[.,;:!?)\]]*")
_AROUND = "()[].,;:!?"


class DocstringCodeConfig(HeldOutTaskConfig, TagsTaskConfig):
    """Tagging of the words of docstring sentences as code or prose; every sentence has some code."""

    kind: Literal["docstring_code"] = "docstring_code"

    metrics = ("f1", "accuracy")

    @property
    def outside(self) -> str | None:
        """`O`, the tag of prose."""
        return OUTSIDE

    def load(self) -> TaskData[TaggedSentence]:
        """Make the examples.

        Raises:
            ConfigError: there are too few sentences with marked code.
        """
        sentences = read_sentences(self)
        return TaskData(
            train=_examples(sentences.train, self.train_examples, self),
            evaluation=_examples(sentences.evaluation, self.evaluation_examples, self),
            labels=(OUTSIDE, CODE),
            inputs=sentences.inputs,
        )

    def measure(
        self, sentences: Sequence[TaggedSentence], predictions: Sequence[Sequence[str]]
    ) -> dict[str, float]:
        """F1 of the words that are code, and accuracy of all words."""
        from pipeline.tune.metrics.entities import entity_metrics

        measured = entity_metrics([sentence.tags for sentence in sentences], predictions)
        return {name: measured[name] for name in self.metrics}


def tag_words(text: str) -> tuple[list[str], list[str]] | None:
    """The words of a sentence, without marks and the punctuation around them, and their tags.

    Returns:
        None where nothing is marked, or marks are unclear: code of several words, or half a pair of backquotes.
    """
    words, tags = [], []
    for part in text.split():
        marked = _MARKED.fullmatch(part)
        if marked is None and "`" in part:
            return None
        words.append(marked["code"] if marked else part.strip(_AROUND) or part)
        tags.append(CODE if marked else OUTSIDE)
    return (words, tags) if CODE in tags else None


def _examples(
    sentences: Sequence[Sentence], count: int, config: DocstringCodeConfig
) -> tuple[TaggedSentence, ...]:
    found = [(sentence.id, tagged) for sentence in sentences if (tagged := tag_words(sentence.text))]
    if len(found) < count:
        raise too_few(
            config, f"{count} sentences with code are needed on one side", f"{len(found)} of {len(sentences)}"
        )
    return tuple(TaggedSentence(name, tuple(words), tuple(tags)) for name, (words, tags) in found[:count])
