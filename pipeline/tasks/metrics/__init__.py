"""The metrics that a task can name. All are in their natural unit: a share of 1, not percent.

Their libraries are imported when they are used: together they take longer than a short training.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

# scikit-learn annotates `zero_division` by its default, a text, although it documents 0 and 1.
_IF_UNDEFINED: Any = 0


def accuracy(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Share of right predictions; both arguments int64 [examples]."""
    return float(np.mean(labels == predictions))


def f1(labels: np.ndarray, predictions: np.ndarray) -> float:
    """F1 of label 1, as GLUE reports MRPC; 0 when neither labels nor predictions hold it."""
    from sklearn.metrics import f1_score

    return float(f1_score(labels, predictions, labels=[1], average="macro", zero_division=_IF_UNDEFINED))


def macro_f1(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Mean F1 of all labels that occur in `labels` or `predictions`."""
    from sklearn.metrics import f1_score

    return float(f1_score(labels, predictions, average="macro", zero_division=_IF_UNDEFINED))


def matthews(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Matthews correlation coefficient (Matthews 1975) in [-1, 1]; 0 for constant predictions, as the limit of the
    formula, and for constant labels."""
    from sklearn.metrics import matthews_corrcoef

    with warnings.catch_warnings():
        # Constant predictions are common after the first epoch; the value 0 already shows them.
        warnings.simplefilter("ignore", UserWarning)
        return float(matthews_corrcoef(labels, predictions))


def pearson(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Linear correlation in [-1, 1]; 0 where it is not defined: for constants, fewer than two numbers, and NaN or
    infinite ones."""
    from scipy.stats import pearsonr

    return _correlation(pearsonr, labels, predictions)


def spearman(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Correlation of ranks in [-1, 1]; 0 where `pearson` is."""
    from scipy.stats import spearmanr

    return _correlation(spearmanr, labels, predictions)


def _correlation(function: Callable[..., Any], *sides: np.ndarray) -> float:
    if not all(np.isfinite(side).all() and np.ptp(side) for side in sides):
        return 0.0
    with warnings.catch_warnings():
        # Nearly constant predictions are common after the first epoch.
        warnings.simplefilter("ignore", RuntimeWarning)
        return float(function(*sides)[0])


Metric = Callable[[np.ndarray, np.ndarray], float]
"""(labels, predictions), both [examples], int64 indices of labels or float numbers, to a number; higher is better."""

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
