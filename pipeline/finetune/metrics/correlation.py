"""Correlations of numbers, which GLUE reports for STS-B."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np


def pearson(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Linear correlation in [-1, 1]; 0 where either side is constant, or there are fewer than two numbers."""
    from scipy.stats import pearsonr

    return _correlation(pearsonr, labels, predictions)


def spearman(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Correlation of ranks in [-1, 1]; 0 where either side is constant, or there are fewer than two numbers."""
    from scipy.stats import spearmanr

    return _correlation(spearmanr, labels, predictions)


def _correlation(function: Callable[..., Any], *sides: np.ndarray) -> float:
    return 0.0 if any(np.ptp(side) == 0 for side in sides) else float(function(*sides)[0])
