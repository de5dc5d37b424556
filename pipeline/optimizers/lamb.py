"""LAMB (You et al. 2020)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from pipeline.optimizers.base import FLOAT_BYTES, Group, Implementations, Optimizer

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_TRUST = {"min_coeff": 0.01, "max_coeff": 10.0}
"""DeepSpeed's bounds on the trust ratio."""


class Lamb(Optimizer):
    """LAMB (You et al. 2020), in DeepSpeed's kernel on GPUs and in torch on CPUs. Only ZeRO stage 0."""

    IMPLEMENTATIONS = Implementations("FusedLamb", "Lamb", "Lamb")
    STATE = ("exp_avg", "exp_avg_sq")
    NEEDS_WHOLE = "shards do not know the norms of whole matrices"

    kind: Literal["lamb"] = "lamb"
    betas: tuple[float, float] = (0.9, 0.98)
    """Decay of the first and second moment."""
    eps: float = Field(default=1e-6, gt=0)
    """Added to the denominator."""

    def arguments(self) -> dict[str, Any]:
        return {"betas": self.betas, "eps": self.eps}

    def in_torch(self, groups: list[Group]) -> torch.optim.Optimizer:
        from pipeline.optimizers.functional import FunctionalOptimizer, one_by_one

        return FunctionalOptimizer(groups, one_by_one(_update), lr=0.0, **self.arguments(), **_TRUST)

    def update_bytes(self, elements: int, largest: int, *, on_cuda: bool) -> int:
        return 0 if on_cuda else 3 * FLOAT_BYTES * largest


def _update(parameter: Tensor, gradient: Tensor, state: dict[str, Any], group: Group) -> None:
    """Algorithm 2 of the paper."""
    import torch

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
