"""Compare the scores of arms with the order that a paper found."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict

from pipeline.tune.report.bootstrap import CONFIDENCE, Sums, resampled, sums_of
from pipeline.tune.report.scores import ScoresDirectory
from pipeline.tune.results import Trial

Verdict = Literal["same order", "opposite", "within the spread"]
_SAME = 1e-6


class ArmScore(BaseModel):
    """An arm on a task."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    arm: str
    values: dict[int, float]
    """The task's main metric by seed, as a share of 1."""
    mean: float
    std: float
    """Sample standard deviation over seeds (n - 1)."""


class Pair(BaseModel):
    """Two arms on a task, the lower one of the paper first."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    lower: str
    higher: str
    """The arm that scored higher in the paper."""
    difference: float
    """Mean of `higher` less mean of `lower`, as a share of 1."""
    low: float
    high: float
    """The 95% interval of the difference for other evaluation examples of the same kind: both arms see the same
    resamples."""
    spread: float
    """Standard deviation of a difference of two seeds: the root of the sum of both variances."""

    @property
    def verdict(self) -> Verdict:
        """A difference counts where it is larger than the seeds' spread and its interval leaves 0 out."""
        if abs(self.difference) <= self.spread or self.low <= 0 <= self.high:
            return "within the spread"
        return "same order" if self.difference > 0 else "opposite"


def arm_score(arm: str, values: Mapping[int, float]) -> ArmScore:
    """The mean and the spread of at least two seeds."""
    found = list(values.values())
    return ArmScore(arm=arm, values=dict(values), mean=statistics.fmean(found), std=statistics.stdev(found))


def compare(lower: ArmScore, higher: ArmScore, sums: Mapping[str, Sequence[Sums]]) -> Pair:
    """The difference between two arms, with its paired bootstrap interval.

    Args:
        sums: by arm, for each seed what the evaluation examples add to the metric.
    """
    differences = resampled(sums[higher.arm]) - resampled(sums[lower.arm])
    low, high = np.quantile(differences, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2]).tolist()
    return Pair(
        lower=lower.arm,
        higher=higher.arm,
        difference=higher.mean - lower.mean,
        low=low,
        high=high,
        spread=math.hypot(lower.std, higher.std),
    )


def sums_of_task(opened: ScoresDirectory, task: str) -> tuple[float, Sums]:
    """The score of a task, and what its evaluation examples add to it, from the saved predictions.

    Raises:
        ValueError: the metric is no function of sums, or the predictions have another score than was saved.
    """
    score = next(each for each in opened.scores if each.task == task)
    sums = sums_of(score.main_metric, opened.lines(Trial.of(score)), opened.labels.get(task, ()))
    if sums is None:
        raise ValueError(f"{score.main_metric} of {task} is no sum over examples")
    found = float(sums.value(sums.columns.sum(0)))
    if not abs(found - score.value) < _SAME:
        raise ValueError(f"the predictions of {task} in {opened.path} score {found}, not {score.value}")
    return score.value, sums
