"""AdamW (Loshchilov and Hutter 2019)."""

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
