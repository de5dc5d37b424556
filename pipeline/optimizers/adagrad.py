"""Adagrad (Duchi et al. 2011)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from pipeline.optimizers.base import FLOAT_BYTES, Group, Implementations, Machine, Optimizer

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class Adagrad(Optimizer):
    """Adagrad (Duchi et al. 2011), in DeepSpeed's kernel on CPUs with a compiler and in torch's elsewhere."""

    IMPLEMENTATIONS = Implementations("Adagrad", "DeepSpeedCPUAdagrad", "Adagrad")
    STATE = ("exp_avg_sq",)

    kind: Literal["adagrad"] = "adagrad"
    eps: float = Field(default=1e-6, gt=0)
    """Added to the denominator."""
    initial_accumulator: float = Field(default=0.0, ge=0)
    """What the sums of squares begin with; 1 in ELMo's released code."""

    def implementation(self, machine: Machine) -> str:
        """Name of the class on a machine; DeepSpeed's Adagrad always begins with 0."""
        return super().implementation("plain" if self.initial_accumulator else machine)

    def arguments(self) -> dict[str, Any]:
        return {"eps": self.eps}

    def in_torch(self, groups: list[Group]) -> torch.optim.Optimizer:
        from pipeline.optimizers.functional import FunctionalOptimizer

        update = partial(_update, initial=self.initial_accumulator)
        return FunctionalOptimizer(groups, update, lr=0.0, **self.arguments())

    def update_bytes(self, elements: int, largest: int, *, on_cuda: bool) -> int:
        # On GPUs torch's Adagrad works on lists of whole tensors.
        return 3 * FLOAT_BYTES * elements if on_cuda else 0


def _update(
    parameters: list[Tensor],
    gradients: list[Tensor],
    states: list[dict[str, Any]],
    group: Group,
    *,
    initial: float,
) -> None:
    """torch's own kernels. State: `exp_avg_sq` (sums of squares), `step`."""
    import torch
    from torch.optim.adagrad import adagrad

    for state, parameter in zip(states, parameters, strict=True):
        state.setdefault("step", torch.zeros(()))
        if "exp_avg_sq" not in state:
            state["exp_avg_sq"] = torch.full_like(parameter, initial)
    adagrad(
        parameters,
        gradients,
        [state["exp_avg_sq"] for state in states],
        [state["step"] for state in states],
        lr=group["lr"],
        weight_decay=group["weight_decay"],
        lr_decay=0.0,
        eps=group["eps"],
        maximize=False,
    )
