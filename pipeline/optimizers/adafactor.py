"""Adafactor (Shazeer and Stern 2018)."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from pipeline.optimizers.base import FLOAT_BYTES, Group, Optimizer

if TYPE_CHECKING:
    from torch import Tensor, nn


class Adafactor(Optimizer):
    """Adafactor (Shazeer and Stern 2018, algorithms 4 and 5). Only ZeRO stage 0.

    The second moment of a matrix is kept as the means of its rows and of its columns. Its relative step size,
    min(0.01, 1 / sqrt(step)), is lr 0.01 under `schedule: {kind: inverse_sqrt, constant_steps: 10000}`, as for T5
    (Raffel et al. 2020, section 3.1.2). Matrices that a network keeps as one, such as query, key and value, are updated
    each by itself: T5's queries begin at an eighth of its keys, and the step follows the size of the weights.
    """

    STATE = ("exp_avg_sq",)
    WHOLE_STATE = ("exp_avg_sq_row", "exp_avg_sq_col")
    TEMPORARIES = 2
    NEEDS_WHOLE = "shards do not know the rows and columns of whole matrices"

    kind: Literal["adafactor"] = "adafactor"
    scale_parameter: bool = True
    """Multiply the learning rate by the root mean square of each tensor's weights (section 8 of the paper)."""
    decay_rate: float = Field(default=0.8, gt=0, le=1)
    """The second moment decays by 1 - step ** -decay_rate (section 7.2)."""
    beta1: float | None = Field(default=None, gt=0, lt=1)
    """Decay of a first moment of the updates; null keeps none."""
    eps: tuple[float, float] = (1e-30, 1e-3)
    """Added to squared gradients; least root mean square that `scale_parameter` multiplies by."""
    update_clip: float = Field(default=1.0, gt=0)
    """Largest root mean square of a tensor's update, before the learning rate (section 6)."""
    version: Literal[2] = 2
    """Raised where the same settings give other updates. 2: queries, keys and values are matrices of their own."""

    def groups(self, model: nn.Module) -> list[Group]:
        """Groups whose parameters hold matrices of the same `rows`; (), where they are a single one."""
        from models.weights import fused_rows

        fused, groups = fused_rows(model), []
        for group in super().groups(model):
            rows_of = [fused.get(one, ()) for one in group["params"]]
            for rows in dict.fromkeys(rows_of):
                own = [one for one, its in zip(group["params"], rows_of, strict=True) if its == rows]
                groups.append(group | {"params": own, "rows": rows})
        return groups

    @staticmethod
    def update(parameter: Tensor, gradient: Tensor, state: dict[str, Any], group: Group) -> None:
        import torch

        rows = group.get("rows", ())
        if "step" not in state:
            state["step"], shape = 0, parameter.shape
            if group["beta1"] is not None:
                state["exp_avg"] = torch.zeros_like(parameter)
            if len(shape) < 2:
                state["exp_avg_sq"] = torch.zeros_like(parameter)
            else:
                state["exp_avg_sq_row"] = parameter.new_zeros(shape[:-1])
                state["exp_avg_sq_col"] = parameter.new_zeros(_columns(shape, rows))
        state["step"] += 1
        if not rows:
            _update(parameter, gradient, state, group)
            return
        parts = {
            name: value.unbind() if name == "exp_avg_sq_col" else value.split(rows)
            for name, value in state.items()
            if name != "step"
        }
        for number, (part, own) in enumerate(zip(parameter.split(rows), gradient.split(rows), strict=True)):
            of_part = {name: each[number] for name, each in parts.items()}
            _update(part, own, {"step": state["step"], **of_part}, group)

    def state_bytes(self, elements: int, model: nn.Module) -> int:
        from models.weights import fused_rows

        fused, moments = fused_rows(model), elements if self.beta1 else 0
        for one in model.parameters():
            if one.requires_grad:
                shape, rows = one.shape, fused.get(one, ())
                moments += prod(shape[:-1]) + prod(_columns(shape, rows)) if len(shape) > 1 else one.numel()
        return FLOAT_BYTES * moments


def _columns(shape: tuple[int, ...], rows: tuple[int, ...]) -> tuple[int, ...]:
    """Shape of the means of columns of a parameter of two dimensions or more."""
    return (*((len(rows),) if rows else shape[:-2]), shape[-1])


def _update(parameter: Tensor, gradient: Tensor, state: dict[str, Any], group: Group) -> None:
    """Update a single matrix, or a bias, in place; with its part of the state."""
    update = _normalised(gradient, state, group)
    update.div_((_rms(update) / group["update_clip"]).clamp_(min=1.0))
    rate = group["lr"]
    if group["scale_parameter"]:
        rate = _rms(parameter).clamp_(min=group["eps"][1]) * rate
    update.mul_(rate)
    if group["beta1"] is not None:
        update = state["exp_avg"].lerp_(update, 1 - group["beta1"])
    if group["weight_decay"]:
        parameter.mul_(1 - rate * group["weight_decay"])
    parameter.sub_(update)


def _normalised(gradient: Tensor, state: dict[str, Any], group: Group) -> Tensor:
    """The gradient over the root of its second moment, which is updated first."""
    import torch

    new = state["step"] ** -group["decay_rate"]
    squared = gradient.square().add_(group["eps"][0])
    if gradient.dim() < 2:
        return state["exp_avg_sq"].lerp_(squared, new).rsqrt().mul_(gradient)
    rows = state["exp_avg_sq_row"].lerp_(squared.mean(-1), new)
    columns = state["exp_avg_sq_col"].lerp_(squared.mean(-2), new)
    by_row = (rows / rows.mean(-1, keepdim=True)).rsqrt_().unsqueeze(-1)
    return torch.mul(by_row, columns.rsqrt().unsqueeze(-2), out=squared).mul_(gradient)


def _rms(tensor: Tensor) -> Tensor:
    return tensor.norm() / tensor.numel() ** 0.5
