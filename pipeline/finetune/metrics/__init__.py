"""The metrics that a task can name. All are in their natural unit: a share of 1, not percent.

Their libraries are imported when they are used: together they take longer than a short training.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np

from pipeline.finetune.metrics.accuracy import accuracy
from pipeline.finetune.metrics.correlation import pearson, spearman
from pipeline.finetune.metrics.f1 import f1, macro_f1
from pipeline.finetune.metrics.matthews import matthews

Metric = Callable[[np.ndarray, np.ndarray], float]
"""(labels, predictions), both [examples], int64 numbers of labels or float numbers, to a number; higher is better."""

METRICS: Mapping[str, Metric] = {
    "accuracy": accuracy,
    "f1": f1,
    "macro_f1": macro_f1,
    "matthews": matthews,
    "pearson": pearson,
    "spearman": spearman,
}
"""Every metric."""


def measure(names: Iterable[str], labels: np.ndarray, predictions: np.ndarray) -> dict[str, float]:
    """The named metrics; `labels` and `predictions` are [examples], at least one."""
    return {name: METRICS[name](labels, predictions) for name in names}
