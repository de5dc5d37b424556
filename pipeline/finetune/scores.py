"""The scores of trainings, and tables over seeds."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import orjson
from pydantic import BaseModel, ConfigDict

from cluster.artefacts.storage import open_artefact
from pipeline.checkpoints.checkpoint import KIND as CHECKPOINT_KIND

KIND = "scores"
SCORES_FILE = "scores.json"

Initial = Literal["pretrained", "random"]
"""The weights a training started from."""


class EpochScore(BaseModel):
    """The loss and the metrics of one epoch."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    update: int
    """Updates done by then."""
    loss: float
    """Mean training loss of the epoch, in nats per prediction: a label, an answer or a token."""
    metrics: dict[str, float]
    """Empty after epochs that are not scored."""


class Score(BaseModel):
    """The result of one training."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    task: str
    """The task's name in the configuration."""
    initial: Initial
    seed: int
    reference: str | None = None
    """The checkpoint, `RUN@STEP` or a directory; None for random weights. Kept in the artefact's manifest,
    not in its files, so that the same scores have the same fingerprint wherever the checkpoint lies."""
    main_metric: str
    metrics: dict[str, float]
    """After the last epoch, as shares of 1. Choosing the best epoch would tune on the evaluation examples."""
    num_train_examples: int
    num_evaluation_examples: int
    epochs: tuple[EpochScore, ...]
    baselines: dict[str, dict[str, float]] = {}
    """By name, the same metrics of predictions without a network, such as the first sentence as a summary."""

    @property
    def value(self) -> float:
        """The main metric."""
        return self.metrics[self.main_metric]


@dataclass(frozen=True, slots=True)
class SummaryRow:
    """One line of a table: a task and its initial weights over seeds, or a baseline of the task."""

    task: str
    initial: Initial | None
    """None for a baseline, which nothing was trained for."""
    reference: str | None
    """The checkpoint, or the name of the baseline; None for random weights."""
    num_seeds: int
    mean: dict[str, float]
    """By metric."""
    std: dict[str, float | None]
    """Sample standard deviation (n - 1) by metric; None with a single seed."""


def summarise(scores: Iterable[Score]) -> list[SummaryRow]:
    """Mean and standard deviation over seeds: a row per task and initial weights, in order of appearance. The first row
    of a task is followed by one for each of its baselines."""
    groups: dict[tuple[str, Initial, str | None], list[Score]] = {}
    for score in scores:
        groups.setdefault((score.task, score.initial, score.reference), []).append(score)
    rows: list[SummaryRow] = []
    for group in groups.values():
        compared = {row.task for row in rows}
        rows.append(_summary(group))
        rows += [] if group[0].task in compared else _baseline_rows(group[0])
    return rows


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
        num_seeds=len(group),
        mean={name: statistics.fmean(found) for name, found in values.items()},
        std={name: statistics.stdev(found) if len(found) > 1 else None for name, found in values.items()},
    )


def _baseline_rows(score: Score) -> list[SummaryRow]:
    return [
        SummaryRow(
            task=score.task,
            initial=None,
            reference=name,
            num_seeds=0,
            mean=metrics,
            std=dict.fromkeys(metrics),
        )
        for name, metrics in score.baselines.items()
    ]
