"""Settings and examples of multiple choice: which of several texts is right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.tune.task import TaskConfig


@dataclass(frozen=True, slots=True)
class Choices:
    """A question with texts to choose from, each read as a pair."""

    id: str
    """Unique in its split; names the example in the predictions."""
    pairs: tuple[tuple[str, str], ...]
    """Per choice the two texts that are read together, such as the passage, and the question with this answer."""
    label: int
    """The number of the right choice, from 0."""
    group: str = ""
    """The evaluation set, or the passage, that the example belongs to, where the metrics of a task ask for it."""
    accepted: tuple[int, ...] = ()
    """Choices that count as right, where there are several; training learns `label`."""
    answers: tuple[str, ...] = ()
    """What each choice says by itself, where the metrics of a task compare texts."""

    @property
    def texts(self) -> tuple[str, ...]:
        """All texts that are read, each once."""
        return tuple(dict.fromkeys(text for pair in self.pairs for text in pair))


class ChoicesTaskConfig(TaskConfig):
    """Settings that tasks of multiple choice share."""

    form = "choices"
    carriers = ("encoder", "decoder", "encoder_decoder")
    head = "multiple_choice"

    def measure(self, examples: Sequence[Choices], outputs: np.ndarray) -> dict[str, float]:
        """The share of the examples whose chosen text is right.

        Args:
            outputs: float32 [examples, most choices], scores; -inf where an example has fewer choices.
        """
        chosen = outputs.argmax(-1).tolist()
        right = [
            number in (each.accepted or (each.label,)) for each, number in zip(examples, chosen, strict=True)
        ]
        return {"accuracy": sum(right) / len(right)}

    def submission(self, examples: Sequence[Choices], outputs: np.ndarray) -> dict[str, bytes]:
        """Predictions of the test set as files that a leaderboard takes, by their names; empty where there is none.

        Args:
            outputs: as in `measure`.
        """
        return {}
