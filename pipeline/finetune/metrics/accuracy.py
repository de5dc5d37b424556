"""Share of right predictions."""

from __future__ import annotations

import numpy as np


def accuracy(labels: np.ndarray, predictions: np.ndarray) -> float:
    """In [0, 1]; both arguments int64 [examples]."""
    return float(np.mean(labels == predictions))
