"""StableAdamW (Wortsman et al. 2023)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from pipeline.optimizers.base import FLOAT_BYTES, Group, Optimizer, everywhere

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class StableAdamW(Optimizer):
    """StableAdamW (Wortsman et al. 2023, algorithm 2): AdamW with Adafactor's clipping of updates, in torch. Only ZeRO
    stage 0.

    A tensor whose gradients outgrow its second moment learns slower in that step, in the place of clipped gradients:
    ModernBERT sets `clip: null`.
    """

    IMPLEMENTATIONS = everywhere("StableAdamW")
    STATE = ("exp_avg", "exp_avg_sq")
    NEEDS_WHOLE = "shards do not know the mean squares of whole tensors"

    kind: Literal["stable_adamw"] = "stable_adamw"
    betas: tuple[float, float] = (0.9, 0.98)
    """Decay of the first and second moment."""
    eps: float = Field(default=1e-6, gt=0)
    """Added to the denominator."""

    def arguments(self) -> dict[str, Any]:
        return {"betas": self.betas, "eps": self.eps}

    def in_torch(self, groups: list[Group]) -> torch.optim.Optimizer:
        from pipeline.optimizers.functional import FunctionalOptimizer, one_by_one

        return FunctionalOptimizer(groups, one_by_one(_update), lr=0.0, **self.arguments())

    def update_bytes(self, elements: int, largest: int, *, on_cuda: bool) -> int:
        return 2 * FLOAT_BYTES * largest


def _update(parameter: Tensor, gradient: Tensor, state: dict[str, Any], group: Group) -> None:
    import torch

    if "step" not in state:
        state.update(step=0, exp_avg=torch.zeros_like(parameter), exp_avg_sq=torch.zeros_like(parameter))
    state["step"] += 1
    (beta1, beta2), eps, mean, square = group["betas"], group["eps"], state["exp_avg"], state["exp_avg_sq"]
    # Moments without the bias that Adam corrects: the first gradients count for more.
    mean.lerp_(gradient, (1 - beta1) / (1 - beta1 ** state["step"]))
    squared = gradient.square()
    square.lerp_(squared, (1 - beta2) / (1 - beta2 ** state["step"]))
    excess = squared.div_(square.clamp(min=eps**2)).mean().sqrt_().clamp_(min=1.0)
    rate = group["lr"] / excess
    if group["weight_decay"]:
        parameter.mul_(1 - rate * group["weight_decay"])
    parameter.sub_((mean / square.sqrt().add_(eps)).mul_(rate))
