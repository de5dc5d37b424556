"""Adagrad (Duchi et al. 2011)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from pipeline.optimizers.base import Group, Optimizer

if TYPE_CHECKING:
    from torch import Tensor


class Adagrad(Optimizer):
    """Adagrad (Duchi et al. 2011), in torch's kernels."""

    STATE = ("exp_avg_sq",)
    TEMPORARIES = 3

    kind: Literal["adagrad"] = "adagrad"
    eps: float = Field(default=1e-6, gt=0)
    """Added to the denominator."""
    initial_accumulator: float = Field(default=0.0, ge=0)
    """Initial value of the sums of squares; 1 in ELMo's released code."""

    @staticmethod
    def update(parameter: Tensor, gradient: Tensor, state: dict[str, Any], group: Group) -> None:
        """torch's own kernels. State: `exp_avg_sq` (sums of squares), `step`."""
        import torch
        from torch.optim.adagrad import adagrad

        if "step" not in state:
            sums = torch.full_like(parameter, group["initial_accumulator"])
            state.update(step=torch.zeros(()), exp_avg_sq=sums)
        adagrad(
            [parameter],
            [gradient],
            [state["exp_avg_sq"]],
            [state["step"]],
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            lr_decay=0.0,
            eps=group["eps"],
            maximize=False,
        )
