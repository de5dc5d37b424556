"""The standard error of a held-out loss, against samples that are drawn again and again."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.pretrain.evaluation import standard_error


def measured(losses: np.ndarray, counts: np.ndarray) -> tuple[float, float]:
    """Mean loss of a prediction, and its standard error, from the micro-batches of one evaluation."""
    products = [(losses * losses).sum(), (losses * counts).sum(), (counts * counts).sum()]
    mean = losses.sum() / counts.sum()
    return mean, standard_error(mean, counts.sum(), len(losses), products)


def test_it_is_the_error_of_a_mean_where_micro_batches_are_equally_large():
    means = np.random.Generator(np.random.Philox(1)).normal(5.0, 0.3, 64)
    _, error = measured(20 * means, np.full(64, 20.0))
    assert error == pytest.approx(means.std(ddof=1) / 8)


def test_it_is_the_spread_of_the_loss_over_evaluations_with_alike_predictions_and_unequal_micro_batches():
    generator = np.random.Generator(np.random.Philox(2))
    found = []
    for _ in range(400):
        counts = generator.integers(10, 30, 100).astype(float)
        # Predictions of a micro-batch share a difficulty: they are no independent draws.
        losses = counts * generator.normal(5.0, 0.4, 100) + np.sqrt(counts) * generator.normal(0, 0.2, 100)
        found.append(measured(losses, counts))
    means, errors = np.array(found).T
    assert errors.mean() == pytest.approx(means.std(), rel=0.1)


def test_equal_losses_have_no_error():
    assert measured(np.array([10.0, 20.0]), np.array([5.0, 10.0])) == (2.0, 0.0)
