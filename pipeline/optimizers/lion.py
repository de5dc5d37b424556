"""Lion (Chen et al. 2023)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pipeline.optimizers.base import Group, Optimizer

if TYPE_CHECKING:
    from torch import Tensor


class Lion(Optimizer):
    """Lion (Chen et al. 2023)."""

    STATE = ("exp_avg",)
    TEMPORARIES = 1

    kind: Literal["lion"] = "lion"
    betas: tuple[float, float] = (0.9, 0.98)
    """Weight of the momentum in an update, and decay of the momentum; Lion's authors take (0.9, 0.99)."""

    @staticmethod
    def update(parameter: Tensor, gradient: Tensor, state: dict[str, Any], group: Group) -> None:
        """Algorithm 2 of the paper."""
        import torch

        if "exp_avg" not in state:
            state["exp_avg"] = torch.zeros_like(parameter)
        (beta1, beta2), mean = group["betas"], state["exp_avg"]
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        parameter.sub_(mean.lerp(gradient, 1 - beta1).sign_(), alpha=group["lr"])
        mean.lerp_(gradient, 1 - beta2)
