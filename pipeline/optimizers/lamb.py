"""LAMB (You et al. 2020)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from pipeline.optimizers.base import Group, Optimizer

if TYPE_CHECKING:
    from torch import Tensor

_LEAST_TRUST, _MOST_TRUST = 0.01, 10.0
"""Bounds of the trust ratio, as DeepSpeed has them."""


class Lamb(Optimizer):
    """LAMB (You et al. 2020). Only ZeRO stage 0.

    As in the released code (ALBERT's lamb_optimizer.py), biases and norms move by Adam's updates: biases begin at zero,
    and a step in proportion to their length would keep them there. Matrices that a network keeps as one, such as query,
    key and value, are one matrix.
    """

    STATE = ("exp_avg", "exp_avg_sq")
    TEMPORARIES = 3
    NEEDS_WHOLE = "shards do not know the norms of whole matrices"

    kind: Literal["lamb"] = "lamb"
    betas: tuple[float, float] = (0.9, 0.98)
    """Decay of the first and second moment."""
    eps: float = Field(default=1e-6, gt=0)
    """Added to the denominator."""
    version: Literal[2] = 2
    """Raised where the same settings give other updates. 2: biases and norms are not scaled by their lengths."""

    @staticmethod
    def update(parameter: Tensor, gradient: Tensor, state: dict[str, Any], group: Group) -> None:
        """Algorithm 2 of the paper, for matrices."""
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
        if parameter.dim() > 1:
            weight, length = torch.linalg.vector_norm(parameter), torch.linalg.vector_norm(update)
            ratio = (weight / length).clamp(_LEAST_TRUST, _MOST_TRUST)
            # A matrix of zeros has no length to be scaled by.
            update.mul_(torch.where((weight > 0) & (length > 0), ratio, torch.ones_like(ratio)))
        parameter.sub_(update, alpha=group["lr"])
