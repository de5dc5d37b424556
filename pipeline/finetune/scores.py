"""What a training scored, and tables over seeds."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import orjson
from pydantic import BaseModel, ConfigDict

from cluster.storage import open_artefact

KIND = "scores"
SCORES_FILE = "scores.json"
CHECKPOINT_KIND = "checkpoint"
"""Kind of the manifest's input entry that names the checkpoint."""

Initial = Literal["pretrained", "random"]
"""The weights a training started from."""


class EpochScore(BaseModel):
    """What was measured after one epoch."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    update: int
    """Updates done by then."""
    loss: float
    """Mean training loss of the epoch, nats per example."""
    metrics: dict[str, float]


class Score(BaseModel):
    """The result of one training."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    task: str
    """The task's name in the configuration."""
    initial: Initial
    seed: int
    reference: str | None = None
    """The checkpoint, `RUN@STEP` or a directory; None for random weights. Stands in the artefact's manifest,
    not in its files, so that the same scores have the same fingerprint wherever the checkpoint lies."""
    main_metric: str
    metrics: dict[str, float]
    """After the last epoch, as shares of 1. Choosing the best epoch would tune on the evaluation examples."""
    num_train_examples: int
    num_evaluation_examples: int
    epochs: tuple[EpochScore, ...]

    @property
    def value(self) -> float:
        """The main metric."""
        return self.metrics[self.main_metric]


@dataclass(frozen=True, slots=True)
class SummaryRow:
    """One line of a table: a task and its initial weights, over seeds."""

    task: str
    initial: Initial
    reference: str | None
    main_metric: str
    num_seeds: int
    mean: dict[str, float]
    """By metric."""
    std: dict[str, float | None]
    """Sample standard deviation (n - 1) by metric; None with a single seed."""


def summarise(scores: Iterable[Score]) -> list[SummaryRow]:
    """Mean and standard deviation over seeds: a row per task and initial weights, in order of appearance."""
    groups: dict[tuple[str, Initial, str | None], list[Score]] = {}
    for score in scores:
        groups.setdefault((score.task, score.initial, score.reference), []).append(score)
    return [_summary(group) for group in groups.values()]


def read_scores(directory: Path) -> list[Score]:
    """The scores of a committed artefact, with the checkpoint's reference from its manifest.

    Raises:
        CorruptArtefactError: it is no scores artefact, or a file is damaged.
    """
    manifest = open_artefact(
        directory, kind=KIND, repair="run the same `cloze finetune` again; only damaged trainings are redone"
    )
    reference = next((entry.uri for entry in manifest.inputs if entry.kind == CHECKPOINT_KIND), None)
    scores = [
        Score.model_validate(row) for row in orjson.loads((directory / SCORES_FILE).read_bytes())["scores"]
    ]
    return [with_reference(score, reference) for score in scores]


def with_reference(score: Score, reference: str | None) -> Score:
    """The score naming its checkpoint, unless it started from random weights."""
    return score.model_copy(update={"reference": reference if score.initial == "pretrained" else None})


def _summary(group: list[Score]) -> SummaryRow:
    first = group[0]
    values = {name: [score.metrics[name] for score in group] for name in first.metrics}
    return SummaryRow(
        task=first.task,
        initial=first.initial,
        reference=first.reference,
        main_metric=first.main_metric,
        num_seeds=len(group),
        mean={name: statistics.fmean(found) for name, found in values.items()},
        std={name: statistics.stdev(found) if len(found) > 1 else None for name, found in values.items()},
    )
