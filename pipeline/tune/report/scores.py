"""A committed artefact of scores, opened for reading."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from cluster.artefacts.errors import ReferenceNotFoundError
from cluster.artefacts.manifest import Manifest, read_manifest
from cluster.artefacts.storage import contents_of
from pipeline.tune.results import Trial
from pipeline.tune.scores import SCORES_FILE, Score, read_scores
from pipeline.tune.summary import SummaryRow

Line = dict[str, Any]
"""The prediction of one evaluation example, as a form wrote it."""


@dataclass(frozen=True, slots=True)
class ScoresDirectory:
    """A committed artefact of scores, whose files were verified."""

    path: Path
    manifest: Manifest
    scores: tuple[Score, ...]
    labels: dict[str, list[str]]
    """By task the names of its labels, in the order of their numbers; empty where nothing is classified."""

    @classmethod
    def open(cls, path: Path) -> ScoresDirectory:
        """Read scores and manifest.

        Raises:
            MissingInputError: it is an artefact of another kind.
            CorruptArtefactError: it is no artefact, or a file is damaged.
        """
        scores = tuple(read_scores(path))
        with contents_of(path / SCORES_FILE):
            labels = orjson.loads((path / SCORES_FILE).read_bytes()).get("labels", {})
        return cls(path, read_manifest(path), scores, labels)

    @property
    def runs(self) -> dict[str, str]:
        """MLflow's run of every training, by the training's name."""
        return self.manifest.stats.get("tracked_runs", {})

    def kind(self, task: str) -> str:
        """The kind of a task, such as `sst2`; empty where the manifest does not say."""
        return self.manifest.config.get("tasks", {}).get(task, {}).get("kind", "")

    def seconds(self, trial: Trial) -> float | None:
        """Time of a training with its evaluations; None where it was not measured."""
        return self.manifest.stats.get("seconds", {}).get(trial.name)

    def speeds(self, trial: Trial) -> dict[str, float] | None:
        """Evaluation rows that `teacher` and `student` read per second; None for a training without a teacher."""
        return self.manifest.stats.get("examples_per_second", {}).get(trial.name)

    def score(self, name: str | None) -> Score:
        """The score of the training called `name`; by default of the first one.

        Raises:
            ReferenceNotFoundError: there is none; the message names those that there are.
        """
        found = {Trial.of(score).name: score for score in self.scores}
        if name is None:
            return self.scores[0]
        if name not in found:
            raise ReferenceNotFoundError(
                f"{self.path} has no training {name}.", next_step=f"name one of {', '.join(found)}"
            )
        return found[name]

    def of_row(self, row: SummaryRow) -> list[Score]:
        """The scores that a line of the summary stands for, one for each seed."""
        return [
            score
            for score in self.scores
            if (score.task, score.initial, score.choice) == (row.task, row.initial, row.choice)
        ]

    def lines(self, trial: Trial) -> list[Line]:
        """The predictions of a training; none where its form writes no lines."""
        path = self.path / trial.file("predictions.jsonl")
        if not path.exists():
            return []
        with contents_of(path):
            return [orjson.loads(line) for line in path.read_bytes().splitlines()]

    def losses(self, trial: Trial) -> list[float]:
        """The mean loss of every update."""
        path = self.path / trial.file("losses.json")
        with contents_of(path):
            # JSON has no NaN.
            return [math.nan if loss is None else loss for loss in orjson.loads(path.read_bytes())]


def median_score(scores: Sequence[Score]) -> Score:
    """The training with the median of the main metric, the lower one of two."""
    return sorted(scores, key=lambda score: score.value)[(len(scores) - 1) // 2]
