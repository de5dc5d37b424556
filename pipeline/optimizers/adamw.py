"""AdamW (Loshchilov and Hutter 2019)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from pipeline.optimizers.base import Group, Implementations, Optimizer

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class AdamW(Optimizer):
    """AdamW (Loshchilov and Hutter 2019), in DeepSpeed's kernels; on CPUs without a compiler, torch's."""

    IMPLEMENTATIONS = Implementations("FusedAdam", "DeepSpeedCPUAdam", "AdamW")
    STATE = ("exp_avg", "exp_avg_sq")
    OFFLOADABLE = True

    kind: Literal["adamw"] = "adamw"
    betas: tuple[float, float] = (0.9, 0.98)
    """Decay of the first and second moment: 0.98 as in RoBERTa's pre-training (Liu et al. 2019, table 9), 0.999 as
    AdamW's authors have it."""
    eps: float = Field(default=1e-6, gt=0)
    """Added to the denominator."""
    bias_correction: bool = True
    """Divide the moments by what they lack in the first steps (Kingma and Ba 2015, section 3). BERT's and ELECTRA's
    released code does not."""

    def arguments(self) -> dict[str, Any]:
        # torch's AdamW has no argument of that name.
        uncorrected = {} if self.bias_correction else {"bias_correction": False}
        return {"betas": self.betas, "eps": self.eps, **uncorrected}

    def in_torch(self, groups: list[Group]) -> torch.optim.Optimizer:
        import torch

        from pipeline.optimizers.functional import FunctionalOptimizer, one_by_one

        if self.bias_correction:
            return torch.optim.AdamW(groups, lr=0.0, fused=True, **self.arguments())
        return FunctionalOptimizer(groups, one_by_one(_uncorrected), lr=0.0, betas=self.betas, eps=self.eps)


def _uncorrected(parameter: Tensor, gradient: Tensor, state: dict[str, Any], group: Group) -> None:
    """The update of BERT's released code; its state is that of torch's AdamW."""
    import torch

    if "step" not in state:
        state.update(
            step=torch.zeros(()),
            exp_avg=torch.zeros_like(parameter),
            exp_avg_sq=torch.zeros_like(parameter),
        )
    state["step"] += 1
    (beta1, beta2), mean, square = group["betas"], state["exp_avg"], state["exp_avg_sq"]
    mean.lerp_(gradient, 1 - beta1)
    square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    parameter.mul_(1 - group["lr"] * group["weight_decay"])
    parameter.addcdiv_(mean, square.sqrt().add_(group["eps"]), value=-group["lr"])
