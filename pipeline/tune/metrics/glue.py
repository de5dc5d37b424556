"""The average over the tasks of GLUE, as its leaderboard makes it (Wang et al. 2019, section 4)."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from types import MappingProxyType

LEADERBOARD: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "cola": ("matthews",),
        "sst2": ("accuracy",),
        "mrpc": ("f1", "accuracy"),
        "stsb": ("pearson", "spearman"),
        "qqp": ("f1", "accuracy"),
        "mnli": ("accuracy_matched", "accuracy_mismatched"),
        "qnli": ("accuracy",),
        "rte": ("accuracy",),
        "wnli": ("accuracy",),
    }
)
"""The metrics that count, by kind of task. The diagnostic set (AX) is no part of the average."""


def glue_average(scores: Mapping[str, Mapping[str, float]]) -> float:
    """The mean over the nine tasks of the mean of each task's metrics.

    A task with several metrics counts with their unweighted average (Wang et al. 2019, section 4), and so does MNLI
    with the accuracies on its two test sets.

    Args:
        scores: by kind of task, its metrics by name; further tasks and metrics are not looked at.

    Raises:
        ValueError: a task or one of its metrics is missing; all are named.
    """
    missing = [
        f"{task}/{metric}"
        for task, metrics in LEADERBOARD.items()
        for metric in metrics
        if metric not in scores.get(task, {})
    ]
    if missing:
        raise ValueError(f"the average over GLUE needs {', '.join(missing)}, too")
    return statistics.fmean(
        statistics.fmean(scores[task][metric] for metric in metrics) for task, metrics in LEADERBOARD.items()
    )
