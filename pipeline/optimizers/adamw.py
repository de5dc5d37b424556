"""AdamW (Loshchilov and Hutter 2019), StableAdamW (Wortsman et al. 2023) and LAMB (You et al. 2020)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from pipeline.optimizers.base import Group, Optimizer

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class AdamW(Optimizer):
    """AdamW (Loshchilov and Hutter 2019): torch's fused kernel, on CPUs and GPUs."""

    STATE = ("exp_avg", "exp_avg_sq")

    kind: Literal["adamw"] = "adamw"
    betas: tuple[float, float] = (0.9, 0.98)
    """Decay of the first and second moment: 0.98 as in RoBERTa's pre-training (Liu et al. 2019, table 9), 0.999 as
    AdamW's authors have it."""
    eps: float = Field(default=1e-6, gt=0)
    """Added to the denominator."""
    bias_correction: bool = True
    """Divide the moments by what they lack in the first steps (Kingma and Ba 2015, section 3). BERT's and ELECTRA's
    released code does not."""

    def in_torch(self, groups: list[Group]) -> torch.optim.Optimizer:
        import torch

        if self.bias_correction:
            return torch.optim.AdamW(groups, lr=0.0, betas=self.betas, eps=self.eps, fused=True)
        return super().in_torch([group | {"fused": True} for group in groups])

    @staticmethod
    def update(parameter: Tensor, gradient: Tensor, state: dict[str, Any], group: Group) -> None:
        """Without bias correction, which torch's class cannot leave out."""
        from pipeline.optimizers.functional import adamw

        adamw(parameter, gradient, state, group, bias_correction=False)


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


_LEAST_TRUST, _MOST_TRUST = 0.01, 10.0
"""Bounds of the trust ratio, as DeepSpeed has them."""


class Lamb(Optimizer):
    """LAMB (You et al. 2020). Only ZeRO stage 0."""

    STATE = ("exp_avg", "exp_avg_sq")
    TEMPORARIES = 3
    NEEDS_WHOLE = "shards do not know the norms of whole matrices"

    kind: Literal["lamb"] = "lamb"
    betas: tuple[float, float] = (0.9, 0.98)
    """Decay of the first and second moment."""
    eps: float = Field(default=1e-6, gt=0)
    """Added to the denominator."""

    @staticmethod
    def update(parameter: Tensor, gradient: Tensor, state: dict[str, Any], group: Group) -> None:
        """Algorithm 2 of the paper."""
        import torch

        from pipeline.optimizers.functional import counted_moments

        beta1, beta2 = group["betas"]
        mean, square = counted_moments(state, parameter)
        mean.lerp_(gradient, 1 - beta1)
        square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        deviation = (square / (1 - beta2 ** state["step"])).sqrt_().add_(group["eps"])
        update = (
            (mean / (1 - beta1 ** state["step"])).div_(deviation).add_(parameter, alpha=group["weight_decay"])
        )
        weight, length = torch.linalg.vector_norm(parameter), torch.linalg.vector_norm(update)
        ratio = (weight / length).clamp(_LEAST_TRUST, _MOST_TRUST)
        # New biases are zero: they have no length to be scaled by.
        ratio = torch.where((weight > 0) & (length > 0), ratio, torch.ones_like(ratio))
        parameter.sub_(update * ratio, alpha=group["lr"])
