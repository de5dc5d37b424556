"""Settings and examples of tagging: a label for every word of a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.tune.task import TaskConfig


@dataclass(frozen=True, slots=True)
class TaggedSentence:
    """A sentence whose words have tags."""

    id: str
    """Unique in its split, such as `dev-17`; names the sentence in the predictions."""
    words: tuple[str, ...]
    tags: tuple[str, ...]
    """As many as words, all of them labels of the task."""


class TagsTaskConfig(TaskConfig):
    """Settings that tasks of tagging share."""

    form = "tags"
    carriers = ("encoder", "decoder", "elmo")
    head = "token_classification"

    @property
    def outside(self) -> str | None:
        """The tag of words that a sequence had no room for; the first label where there is no such one."""
        return None

    def measure(
        self, sentences: Sequence[TaggedSentence], predictions: Sequence[Sequence[str]]
    ) -> dict[str, float]:
        """The share of the words that have the right tag.

        Args:
            predictions: per sentence a tag for each word.
        """
        from pipeline.tune.metrics.entities import tag_accuracy

        return {"accuracy": tag_accuracy([sentence.tags for sentence in sentences], predictions)}
