"""Matthews correlation coefficient (Matthews 1975), which GLUE reports for CoLA."""

from __future__ import annotations

import warnings

import numpy as np


def matthews(labels: np.ndarray, predictions: np.ndarray) -> float:
    """In [-1, 1]; 0 for constant predictions, as the limit of the formula, and for constant labels."""
    from sklearn.metrics import matthews_corrcoef

    with warnings.catch_warnings():
        # Constant predictions are common after the first epoch; the value 0 already shows them.
        warnings.simplefilter("ignore", UserWarning)
        return float(matthews_corrcoef(labels, predictions))
