"""Muon (Jordan et al. 2024) for the matrices of hidden layers, AdamW for all other parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from pipeline.optimizers.base import FLOAT_BYTES, Group, Optimizer

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Coefficients of the Newton-Schulz iteration's polynomial x -> a x + b x^3 + c x^5 (Jordan et al. 2024)."""
_ITERATIONS = 5
_LR_FACTORS: Mapping[str, Callable[[int, int], float]] = {
    "match_rms_adamw": lambda rows, columns: 0.2 * max(rows, columns) ** 0.5,
    "original": lambda rows, columns: max(1.0, rows / columns) ** 0.5,
}
"""Factors of the learning rate by `adjust_lr`, from rows and columns."""


class Muon(Optimizer):
    """Muon (Jordan et al. 2024) for the matrices of hidden layers, with AdamW for embeddings, heads, norms and biases.
    Only ZeRO stage 0.

    The momentum of a matrix is replaced by the nearest orthogonal matrix, by five Newton-Schulz iterations: in bfloat16
    on GPUs, in float32 on CPUs. Matrices that a network keeps as one, such as query, key and value, are one matrix.
    """

    STATE = ("momentum_buffer", "exp_avg", "exp_avg_sq")
    TEMPORARIES = 3
    NEEDS_WHOLE = "shards do not hold whole matrices"

    kind: Literal["muon"] = "muon"
    momentum: float = Field(default=0.95, ge=0, lt=1)
    """Decay of the momentum of hidden matrices (Nesterov's)."""
    adjust_lr: Literal["match_rms_adamw", "original"] = "match_rms_adamw"
    """Factor on the learning rate of a hidden matrix. `match_rms_adamw`, 0.2 x sqrt(max(rows, columns)), gives updates
    as large as AdamW's, so that AdamW's learning rates and weight decay fit (Liu et al. 2025, section 2.2); `original`
    is sqrt(max(1, rows / columns)) (Jordan et al. 2024)."""
    adamw_lr: float | None = Field(default=None, gt=0)
    """Peak learning rate of all parameters but hidden matrices; null takes `lr`."""
    betas: tuple[float, float] = (0.9, 0.98)
    """Decay of AdamW's first and second moment."""
    eps: float = Field(default=1e-6, gt=0)
    """Added to AdamW's denominator."""

    def groups(self, model: nn.Module) -> list[Group]:
        """Groups of hidden matrices (`hidden: True`) and of others, which torch's fused kernel updates."""
        names = {parameter: name for name, parameter in model.named_parameters()}
        groups = []
        for group in super().groups(model):
            for hidden in (True, False):
                own = [one for one in group["params"] if _is_hidden(names[one], one.dim()) is hidden]
                share = 1.0 if hidden or self.adamw_lr is None else self.adamw_lr / self.lr
                scaled = group["lr_scale"] * share
                changed = {"params": own, "lr_scale": scaled, "hidden": hidden, "fused": True}
                groups += [group | changed] if own else []
        return groups

    @staticmethod
    def update(parameter: Tensor, gradient: Tensor, state: dict[str, Any], group: Group) -> None:
        import torch

        from pipeline.optimizers.functional import adamw

        if not group["hidden"]:
            adamw(parameter, gradient, state, group)
            return
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(parameter)
        buffer = state["momentum_buffer"].lerp_(gradient, 1 - group["momentum"])
        update = orthogonalised(gradient.lerp(buffer, group["momentum"]))
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        parameter.add_(update, alpha=-group["lr"] * _LR_FACTORS[group["adjust_lr"]](*parameter.shape))

    def state_bytes(self, elements: int, model: nn.Module) -> int:
        named = ((name, one) for name, one in model.named_parameters() if one.requires_grad)
        return FLOAT_BYTES * sum(
            one.numel() * (1 if _is_hidden(name, one.dim()) else 2) for name, one in named
        )


def orthogonalised(matrix: Tensor, precision: torch.dtype | None = None) -> Tensor:
    """The nearest orthogonal matrix, roughly: singular values near 1, by Newton-Schulz iterations.

    Args:
        matrix: [rows, columns] float32.
        precision: type of the iterations and of the result; None takes bfloat16, which is precise enough but slower
            than float32 on CPUs, or there float32.
    """
    import torch

    if precision is None:
        precision = torch.bfloat16 if matrix.device.type == "cuda" else torch.float32
    wide = matrix.to(precision)
    is_tall = wide.size(0) > wide.size(1)
    wide = wide.T if is_tall else wide
    # Its spectral norm must be at most 1.
    wide = wide / wide.norm().clamp(min=1e-7)
    a, b, c = _COEFFICIENTS
    for _ in range(_ITERATIONS):
        gram = wide @ wide.T
        wide = wide.addmm(gram.addmm(gram, gram, beta=b, alpha=c), wide, beta=a)
    return wide.T if is_tall else wide


def _is_hidden(name: str, dim: int) -> bool:
    from models.weights import is_in_layer

    return dim == 2 and is_in_layer(name)
