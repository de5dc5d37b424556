"""Settings and examples of classification: a label or a number for a text or a pair of texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from pipeline.tune.task import TaskConfig


@dataclass(frozen=True, slots=True)
class Example:
    """One labelled text or pair of texts."""

    id: str
    """Unique in its split, such as `dev-17`; names the example in the predictions."""
    text_a: str
    text_b: str | None
    """The second text of a pair; None for single texts."""
    label: float
    """Index into the task's labels, an int; the number to predict in a regression; UNLABELLED where it is secret."""
    group: str = ""
    """The evaluation set, or the question, that the example belongs to, where the metrics of a task ask for it."""

    @property
    def texts(self) -> tuple[str, ...]:
        """One text or two."""
        return (self.text_a,) if self.text_b is None else (self.text_a, self.text_b)


UNLABELLED = -1
"""The label of an example of a test set."""


class ClassificationTaskConfig(TaskConfig):
    """Settings that tasks of classification share."""

    form = "classification"
    carriers = ("encoder", "decoder", "encoder_decoder", "elmo")
    head = "sequence_classification"

    regression: ClassVar[bool] = False
    """Whether a number is predicted instead of a label."""

    def predictions(self, outputs: np.ndarray) -> np.ndarray:
        """Per example its label, int64, or its number, float32, from outputs [examples, labels or 1]."""
        return outputs[:, 0] if self.regression else outputs.argmax(-1)

    def measure(self, examples: Sequence[Example], outputs: np.ndarray) -> dict[str, float]:
        """The metrics of all examples together; tasks whose metrics look at groups have their own.

        Args:
            outputs: float32 [examples, labels or 1], the scores of labels or the predicted number.
        """
        # scikit-learn and scipy are not needed to read a configuration.
        from pipeline.tune.metrics import measure

        return measure(self.metrics, np.array([each.label for each in examples]), self.predictions(outputs))

    def submission(
        self, examples: Sequence[Example], outputs: np.ndarray, labels: Sequence[str]
    ) -> dict[str, bytes]:
        """Predictions of the test set as files that a leaderboard takes, by their names; empty where there is none.

        Args:
            outputs: as in `measure`.
            labels: names of the labels, in the order of their numbers.
        """
        return {}
