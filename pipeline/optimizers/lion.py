"""Lion (Chen et al. 2023)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pipeline.optimizers.base import Group, Implementations, Optimizer

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class Lion(Optimizer):
    """Lion (Chen et al. 2023), in DeepSpeed's kernels; on CPUs without a compiler, in torch."""

    IMPLEMENTATIONS = Implementations("FusedLion", "DeepSpeedCPULion", "Lion")
    STATE = ("exp_avg",)
    OFFLOADABLE = True

    kind: Literal["lion"] = "lion"
    betas: tuple[float, float] = (0.9, 0.98)
    """Weight of the momentum in an update, and decay of the momentum; Lion's authors take (0.9, 0.99)."""

    def arguments(self) -> dict[str, Any]:
        return {"betas": self.betas}

    def in_torch(self, groups: list[Group]) -> torch.optim.Optimizer:
        from pipeline.optimizers.functional import FunctionalOptimizer, one_by_one

        return FunctionalOptimizer(groups, one_by_one(_update), lr=0.0, **self.arguments())

    def state(self, *, on_cuda: bool) -> tuple[str, ...]:
        """DeepSpeed's operator for CPUs makes a second moment and never looks at it."""
        return self.STATE if on_cuda else (*self.STATE, "exp_avg_sq")


def _update(parameter: Tensor, gradient: Tensor, state: dict[str, Any], group: Group) -> None:
    """Algorithm 2 of the paper."""
    import torch

    if "exp_avg" not in state:
        state["exp_avg"] = torch.zeros_like(parameter)
    (beta1, beta2), mean = group["betas"], state["exp_avg"]
    parameter.mul_(1 - group["lr"] * group["weight_decay"])
    parameter.sub_(mean.lerp(gradient, 1 - beta1).sign_(), alpha=group["lr"])
    mean.lerp_(gradient, 1 - beta2)
