"""LAMB and Adagrad in plain torch, where DeepSpeed has no kernel for the machine.

Both make a parameter's state at its first update, as all optimizers under ZeRO must: `torch.optim.Adagrad` makes it in
its constructor, before ZeRO has put flat tensors in the parameters' place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim.adagrad import adagrad


class Lamb(torch.optim.Optimizer):
    """LAMB (You et al. 2020, algorithm 2), with DeepSpeed's bounds on the trust ratio.

    Every tensor of `params` must be a whole matrix: its norm scales its update. State: `exp_avg`, `exp_avg_sq`, `step`.
    """

    def __init__(
        self,
        params: Any,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        min_coeff: float = 0.01,
        max_coeff: float = 10.0,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, defaults | {"min_coeff": min_coeff, "max_coeff": max_coeff})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """One update of every parameter that has a gradient."""
        assert closure is None
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    _lamb_update(parameter, parameter.grad, self.state[parameter], group)


class Adagrad(torch.optim.Optimizer):
    """Adagrad (Duchi et al. 2011), by torch's own kernels. State: `exp_avg_sq` (sums of squares), `step`."""

    def __init__(
        self,
        params: Any,
        lr: float,
        eps: float = 1e-10,
        weight_decay: float = 0.0,
        initial_accumulator: float = 0.0,
    ) -> None:
        """
        Args:
            initial_accumulator: what the sums of squares begin with.
        """
        super().__init__(params, {"lr": lr, "eps": eps, "weight_decay": weight_decay})
        self._initial = initial_accumulator

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """One update of every parameter that has a gradient."""
        assert closure is None
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            if not parameters:
                continue
            states = [self.state[parameter] for parameter in parameters]
            for state, parameter in zip(states, parameters, strict=True):
                state.setdefault("step", torch.zeros(()))
                if "exp_avg_sq" not in state:
                    state["exp_avg_sq"] = torch.full_like(parameter, self._initial)
            adagrad(
                parameters,
                [parameter.grad for parameter in parameters],
                [state["exp_avg_sq"] for state in states],
                [state["step"] for state in states],
                lr=group["lr"],
                weight_decay=group["weight_decay"],
                lr_decay=0.0,
                eps=group["eps"],
                maximize=False,
            )


def _lamb_update(parameter: Tensor, gradient: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
    if "step" not in state:
        state.update(step=0, exp_avg=torch.zeros_like(parameter), exp_avg_sq=torch.zeros_like(parameter))
    state["step"] += 1
    beta1, beta2 = group["betas"]
    mean, square = state["exp_avg"], state["exp_avg_sq"]
    mean.lerp_(gradient, 1 - beta1)
    square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    deviation = (square / (1 - beta2 ** state["step"])).sqrt_().add_(group["eps"])
    update = (
        (mean / (1 - beta1 ** state["step"])).div_(deviation).add_(parameter, alpha=group["weight_decay"])
    )
    weight, length = torch.linalg.vector_norm(parameter), torch.linalg.vector_norm(update)
    ratio = (weight / length).clamp(group["min_coeff"], group["max_coeff"])
    # New biases are zero: they have no length to be scaled by.
    ratio = torch.where((weight > 0) & (length > 0), ratio, torch.ones_like(ratio))
    parameter.sub_(update * ratio, alpha=group["lr"])
