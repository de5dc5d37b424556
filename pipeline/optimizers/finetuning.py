"""The optimizers as settings of fine-tuning, where rate and decay are the training's own.

A search, a task or an arm changes a training's rate, so the rate stays beside the other settings of the training, and
an optimizer has what is left. AdamW and its kin have the constants of AdamW's authors here: 0.98 and 1e-6 were chosen
for the pre-training of RoBERTa with large batches.
"""

from __future__ import annotations

from types import new_class
from typing import TYPE_CHECKING, Any, ClassVar

from pipeline.optimizers import OPTIMIZERS, union_of
from pipeline.optimizers.base import Optimizer

RATES = ("lr", "weight_decay", "layer_decay")
"""Settings of an optimizer of pre-training that a training of fine-tuning has itself."""
_AUTHORS = {"betas": (0.9, 0.999), "eps": 1e-8}
"""Kingma and Ba 2015, algorithm 1; Loshchilov and Hutter 2019, algorithm 2; the defaults of torch and transformers."""


def _without_rates(one: type[Optimizer]) -> type[Optimizer]:
    """The settings of an optimizer but `RATES`, in a class of the same name."""
    # pydantic leaves out an inherited field that the class declares as a class variable.
    hints: dict[str, Any] = dict.fromkeys(RATES, ClassVar[Any])
    defaults: dict[str, Any] = dict.fromkeys(RATES)
    if {"exp_avg", "exp_avg_sq"} <= set(one.STATE):
        hints |= {name: one.model_fields[name].rebuild_annotation() for name in _AUTHORS}
        defaults |= _AUTHORS
    body = {"__module__": __name__, "__doc__": one.__doc__, "__annotations__": hints, **defaults}
    return new_class(one.__name__, (one,), exec_body=lambda namespace: namespace.update(body))


_CHOICES = {kind: _without_rates(one) for kind, one in OPTIMIZERS.items()}
# Pickled settings name their class by its module.
globals().update({one.__name__: one for one in _CHOICES.values()})

if TYPE_CHECKING:
    FinetuningOptimizer = Optimizer
else:
    FinetuningOptimizer = union_of(_CHOICES)
    """Settings of any optimizer without `RATES`; `kind: adamw` unless another is named."""

DEFAULT = next(iter(_CHOICES.values())).model_validate({})


def with_rates(
    settings: Optimizer, *, lr: float, weight_decay: float, layer_decay: float | None
) -> Optimizer:
    """The optimizer as pre-training has it, from the settings of a training."""
    rates = {"lr": lr, "weight_decay": weight_decay, "layer_decay": layer_decay}
    return OPTIMIZERS[settings.kind].model_validate(settings.model_dump() | rates)
