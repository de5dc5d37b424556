"""Settings and examples of classification: a label for a text or a pair of texts."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.finetune.task import TaskConfig


@dataclass(frozen=True, slots=True)
class Example:
    """One labelled text or pair of texts."""

    id: str
    """Unique in its split, such as `dev-17`; names the example in the predictions."""
    text_a: str
    text_b: str | None
    """The second text of a pair; None for single texts."""
    label: int
    """Index into the task's labels."""


class ClassificationTaskConfig(TaskConfig):
    """Settings that tasks of classification share."""

    form = "classification"
    carriers = ("encoder", "decoder", "elmo")
    head = "sequence_classification"
