"""StableAdamW (Wortsman et al. 2023)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from pipeline.optimizers.base import Group, Optimizer

if TYPE_CHECKING:
    from torch import Tensor


class StableAdamW(Optimizer):
    """StableAdamW (Wortsman et al. 2023, algorithm 2): AdamW with Adafactor's clipping of updates. Only ZeRO stage 0.

    A tensor whose gradients outgrow its second moment learns slower in that step, in the place of clipped gradients:
    ModernBERT sets `clip: null`.
    """

    STATE = ("exp_avg", "exp_avg_sq")
    TEMPORARIES = 2
    NEEDS_WHOLE = "shards do not know the mean squares of whole tensors"

    kind: Literal["stable_adamw"] = "stable_adamw"
    betas: tuple[float, float] = (0.9, 0.98)
    """Decay of the first and second moment."""
    eps: float = Field(default=1e-6, gt=0)
    """Added to the denominator."""

    @staticmethod
    def update(parameter: Tensor, gradient: Tensor, state: dict[str, Any], group: Group) -> None:
        from pipeline.optimizers.functional import counted_moments

        mean, square = counted_moments(state, parameter)
        (beta1, beta2), eps = group["betas"], group["eps"]
        # Moments without the bias that Adam corrects: the first gradients count for more.
        mean.lerp_(gradient, (1 - beta1) / (1 - beta1 ** state["step"]))
        squared = gradient.square()
        square.lerp_(squared, (1 - beta2) / (1 - beta2 ** state["step"]))
        excess = squared.div_(square.clamp(min=eps**2)).mean().sqrt_().clamp_(min=1.0)
        rate = group["lr"] / excess
        if group["weight_decay"]:
            parameter.mul_(1 - rate * group["weight_decay"])
        parameter.sub_((mean / square.sqrt().add_(eps)).mul_(rate))
