"""torch optimizers whose update is a function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pipeline.optimizers.base import Group, Update


class FunctionalOptimizer(torch.optim.Optimizer):
    """An optimizer that leaves its update to a function.

    The function makes a parameter's state at its first update, as all optimizers under ZeRO must: before, ZeRO has not
    yet put flat tensors in the parameters' place.
    """

    def __init__(self, groups: list[Group], update: Update, **defaults: Any) -> None:
        super().__init__(groups, defaults)
        self._update = update

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """One update of every parameter that has a gradient."""
        assert closure is None
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            if parameters:
                gradients = [parameter.grad for parameter in parameters]
                self._update(
                    parameters, gradients, [self.state[parameter] for parameter in parameters], group
                )


def one_by_one(update: Callable[[Tensor, Tensor, dict[str, Any], Group], None]) -> Update:
    """The update of a group by a function of one parameter: parameter, gradient, state and group."""

    def update_all(
        parameters: list[Tensor], gradients: list[Tensor], states: list[dict[str, Any]], group: Group
    ) -> None:
        for parameter, gradient, state in zip(parameters, gradients, states, strict=True):
            update(parameter, gradient, state, group)

    return update_all
