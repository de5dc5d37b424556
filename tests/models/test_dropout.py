"""Dropout keeps the mean, drops what it says, and is a function of torch's seed."""

from __future__ import annotations

import pytest
import torch

from models.functional import dropout


@pytest.mark.parametrize("probability", [0.05, 0.1, 0.5, 0.9])
def test_share_and_mean_are_those_of_the_probability(probability: float):
    torch.manual_seed(1)
    values = torch.ones(1_000_003)
    kept = dropout(values, probability, True)
    error = 5 * (probability * (1 - probability) / len(values)) ** 0.5 + 1 / 65_536
    assert (kept == 0).float().mean().item() == pytest.approx(probability, abs=error)
    assert kept.unique().tolist() == pytest.approx([0.0, 1 / (1 - probability)], rel=1e-3)


def test_neighbours_are_dropped_independently():
    torch.manual_seed(2)
    dropped = (dropout(torch.ones(250_000, 4), 0.5, True) == 0).float()
    assert torch.corrcoef(dropped.T).fill_diagonal_(0).abs().max() < 0.01


def test_same_seed_same_mask_and_gradients_follow_it():
    values = torch.randn(3, 5, requires_grad=True)
    torch.manual_seed(3)
    first = dropout(values, 0.4, True)
    torch.manual_seed(3)
    assert torch.equal(first, dropout(values, 0.4, True))
    first.sum().backward()
    assert torch.equal(values.grad == 0, first == 0)


def test_nothing_is_dropped_in_evaluation_or_without_probability():
    values = torch.randn(4)
    assert dropout(values, 0.5, False) is values
    assert dropout(values, 0.0, True) is values
    assert torch.equal(dropout(values, 0.999_999, True), torch.zeros(4))
