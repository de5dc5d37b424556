"""Correlations of numbers, which GLUE reports for STS-B."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np


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
