"""Probes: linear and small non-linear classifiers on hidden states (Hewitt and Liang 2019, section 3)."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from sklearn.dummy import DummyClassifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier

from pipeline.ask.probing.config import ProbeConfig

PROBES: Mapping[str, Callable[[ProbeConfig], Any]] = {
    "linear": lambda config: LogisticRegression(
        C=config.inverse_l2, max_iter=config.max_iterations, random_state=config.seed
    ),
    "mlp": lambda config: MLPClassifier(
        (config.hidden_size,), max_iter=config.max_iterations, early_stopping=True, random_state=config.seed
    ),
}
"""By name."""
_LEAST_FOR_EARLY_STOPPING = 100


def accuracy(
    kind: str,
    config: ProbeConfig,
    train: tuple[np.ndarray, np.ndarray],
    evaluation: tuple[np.ndarray, np.ndarray],
) -> float:
    """The share of evaluation items that a probe labels rightly.

    Args:
        train: float32 [items, width] vectors and int64 [items] labels.
        evaluation: the same, to score on.
    """
    vectors, labels = train
    mean, scale = vectors.mean(0), vectors.std(0)
    scale = np.where(scale > 1e-6, scale, 1.0)
    probe = PROBES[kind](config) if len(np.unique(labels)) > 1 else DummyClassifier()
    rare = np.bincount(labels)
    if kind == "mlp" and (len(labels) < _LEAST_FOR_EARLY_STOPPING or rare[rare > 0].min() < 2):
        # Too few of a label to hold some out.
        probe.set_params(early_stopping=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        probe.fit((vectors - mean) / scale, labels)
    predicted = np.asarray(probe.predict((evaluation[0] - mean) / scale))
    return float(np.equal(predicted, evaluation[1]).mean())
