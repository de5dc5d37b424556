"""Harmonic mean of precision and recall, in [0, 1]."""

from __future__ import annotations

from typing import Any

import numpy as np

# scikit-learn annotates `zero_division` by its default, a text, although it documents 0 and 1.
_IF_UNDEFINED: Any = 0


def f1(labels: np.ndarray, predictions: np.ndarray) -> float:
    """F1 of label 1, as GLUE reports MRPC; 0 when neither labels nor predictions hold it."""
    from sklearn.metrics import f1_score

    return float(f1_score(labels, predictions, labels=[1], average="macro", zero_division=_IF_UNDEFINED))


def macro_f1(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Mean F1 of all labels that occur in `labels` or `predictions`."""
    from sklearn.metrics import f1_score

    return float(f1_score(labels, predictions, average="macro", zero_division=_IF_UNDEFINED))
