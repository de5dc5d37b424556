"""AdamW (Loshchilov and Hutter 2019)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from cluster.artefacts.errors import ConfigError
from pipeline.optimizers.base import WITH_COMPILER, Group, Implementations, Machine, Optimizer

if TYPE_CHECKING:
    import torch


class AdamW(Optimizer):
    """AdamW (Loshchilov and Hutter 2019), in DeepSpeed's kernels; on CPUs without a compiler, torch's."""

    IMPLEMENTATIONS = Implementations("FusedAdam", "DeepSpeedCPUAdam", "AdamW")
    STATE = ("exp_avg", "exp_avg_sq")
    OFFLOADABLE = True

    kind: Literal["adamw"] = "adamw"
    betas: tuple[float, float] = (0.9, 0.98)
    """Decay of the first and second moment; 0.98 as in Liu et al. 2019, table 9."""
    eps: float = Field(default=1e-6, gt=0)
    """Added to the denominator."""
    bias_correction: bool = True
    """Divide the moments by what they lack in the first steps (Kingma and Ba 2015, section 3). BERT's and ELECTRA's
    released code does not; on CPUs, false needs a C++ compiler."""

    def implementation(self, machine: Machine) -> str:
        """Name of the class on a machine; torch's AdamW always corrects the bias.

        Raises:
            ConfigError: the bias is not to be corrected, and there is no compiler for DeepSpeed's AdamW.
        """
        if machine == "plain" and not self.bias_correction:
            raise ConfigError(
                "optimizer.bias_correction false needs a C++ compiler on a machine without CUDA.",
                next_step=f"{WITH_COMPILER}, or set optimizer.bias_correction=true",
            )
        return super().implementation(machine)

    def arguments(self) -> dict[str, Any]:
        # torch's AdamW has no argument of that name.
        uncorrected = {} if self.bias_correction else {"bias_correction": False}
        return {"betas": self.betas, "eps": self.eps, **uncorrected}

    def in_torch(self, groups: list[Group]) -> torch.optim.Optimizer:
        import torch

        return torch.optim.AdamW(groups, lr=0.0, fused=True, **self.arguments())
