"""Small networks whose every parameter matters: nothing is left at zero or one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from models.config import TransformerConfig
from models.elmo.config import ElmoConfig


@pytest.fixture(scope="session")
def small_config() -> Callable[..., TransformerConfig]:
    """Makes configurations of small networks; keyword arguments override fields."""

    def make(**overrides) -> TransformerConfig:
        fields = {
            "vocab_size": 61,
            "num_layers": 2,
            "hidden_size": 16,
            "num_heads": 4,
            "intermediate_size": 40,
            "max_positions": 24,
        }
        return TransformerConfig(**(fields | overrides))

    return make


@pytest.fixture(scope="session")
def randomise() -> Callable[[nn.Module, int], None]:
    """Moves every parameter of a network, biases and LayerNorms included, off its initial value."""

    def move(model: nn.Module, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.2)

    return move


def learn(
    model: nn.Module, compute: Callable[[], tuple[Any, Any]], rounds: int, **weights: float
) -> tuple[Any, Any]:
    """Train by the weighted sum of the losses that `compute` gives, and give what it gives in the end."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(rounds):
        optimizer.zero_grad()
        losses, _ = compute()
        torch.stack([weight * losses[term] for term, weight in weights.items()]).sum().backward()
        optimizer.step()
    return compute()


def tiny_elmo(**overrides: Any) -> ElmoConfig:
    """A small biLM; keyword arguments override fields."""
    fields = {
        "vocab_size": 30,
        "max_characters": 12,
        "character_size": 4,
        "filters": ((1, 5), (3, 8)),
        "projection_size": 6,
        "cell_size": 10,
    }
    return ElmoConfig(**fields | overrides)
