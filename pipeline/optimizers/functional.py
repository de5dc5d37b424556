"""A torch optimizer whose update is a function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim.adamw import adamw as adamw_of_torch

Group = dict[str, Any]
Update = Callable[[Tensor, Tensor, dict[str, Any], Group], None]
"""As `base.Optimizer.update`."""


class FunctionalOptimizer(torch.optim.Optimizer):
    """An optimizer that leaves the update of a parameter to a function: see `base.Optimizer.update`."""

    def __init__(self, groups: list[Group], update: Update, **defaults: Any) -> None:
        super().__init__(groups, {"lr": 0.0, **defaults})
        self._update = update

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """One update of every parameter that has a gradient."""
        assert closure is None
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad, self.state[parameter], group)


def counted_moments(state: dict[str, Any], parameter: Tensor, first_step: Any = 0) -> tuple[Tensor, Tensor]:
    """The first and second moment of a parameter, zeros at first; `step` in the state is counted up.

    Args:
        first_step: the number or tensor that counts, as it is before the first update.
    """
    if "step" not in state:
        moments = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
        state.update(step=first_step, **moments)
    state["step"] += 1
    return state["exp_avg"], state["exp_avg_sq"]


def adamw(
    parameter: Tensor, gradient: Tensor, state: dict[str, Any], group: Group, *, bias_correction: bool = True
) -> None:
    """An update by torch's fused AdamW; its state is the same as of `torch.optim.AdamW(fused=True)`.

    Args:
        group: with `fused: True`, `betas` and `eps`.
    """
    mean, square = counted_moments(state, parameter, parameter.new_zeros(()))
    # The kernel counts the step by itself. After 2^31 steps nothing is left to correct.
    step = state["step"] - 1 if bias_correction else torch.full_like(state["step"], 2.0**31)
    beta1, beta2 = group["betas"]
    adamw_of_torch(
        [parameter],
        [gradient],
        [mean],
        [square],
        [],
        [step],
        fused=True,
        amsgrad=False,
        beta1=beta1,
        beta2=beta2,
        lr=group["lr"],
        weight_decay=group["weight_decay"],
        eps=group["eps"],
        maximize=False,
    )
