"""Harmonic mean of precision and recall, in [0, 1]."""

from __future__ import annotations

import numpy as np
from sklearn.metrics import f1_score


def f1(labels: np.ndarray, predictions: np.ndarray) -> float:
    """F1 of label 1, as GLUE reports MRPC; 0 when neither labels nor predictions hold it."""
    return float(f1_score(labels, predictions, labels=[1], average="macro", zero_division=0))


def macro_f1(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Mean F1 of all labels that occur in `labels` or `predictions`."""
    return float(f1_score(labels, predictions, average="macro", zero_division=0))
