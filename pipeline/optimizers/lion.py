"""Lion (Chen et al. 2023)."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from pipeline.optimizers.base import Implementations, Optimizer


class Lion(Optimizer):
    """Lion (Chen et al. 2023), in DeepSpeed's kernels; CPUs need a compiler."""

    IMPLEMENTATIONS = Implementations("FusedLion", "DeepSpeedCPULion", None)
    STATE = ("exp_avg",)
    OFFLOADABLE = True

    kind: Literal["lion"] = "lion"
    betas: tuple[float, float] = (0.9, 0.98)
    """Weight of the momentum in an update, and decay of the momentum; Lion's authors take (0.9, 0.99)."""
    eps: float = Field(default=1e-6, gt=0)
    """Not used. Earlier versions took it, and the identity of a run holds it."""

    def arguments(self) -> dict[str, Any]:
        return {"betas": self.betas}

    def state(self, *, on_cuda: bool) -> tuple[str, ...]:
        """DeepSpeed's operator for CPUs makes a second moment and never looks at it."""
        return self.STATE if on_cuda else (*self.STATE, "exp_avg_sq")
