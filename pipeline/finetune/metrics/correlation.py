"""Correlations of numbers, which GLUE reports for STS-B."""

from __future__ import annotations

import numpy as np
from scipy.stats import pearsonr, spearmanr


def pearson(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Linear correlation in [-1, 1]; 0 where either side is constant, or there are fewer than two numbers."""
    return 0.0 if _is_constant(labels, predictions) else float(pearsonr(labels, predictions)[0])


def spearman(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Correlation of ranks in [-1, 1]; 0 where either side is constant, or there are fewer than two numbers."""
    return 0.0 if _is_constant(labels, predictions) else float(spearmanr(labels, predictions)[0])


def _is_constant(*sides: np.ndarray) -> bool:
    return any(np.ptp(side) == 0 for side in sides)
