"""Optimizers, one paper per file; see `base.Optimizer` for what a file offers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Union

from pydantic import Discriminator, Tag

from pipeline.optimizers.adafactor import Adafactor
from pipeline.optimizers.adagrad import Adagrad
from pipeline.optimizers.adamw import AdamW
from pipeline.optimizers.base import Optimizer
from pipeline.optimizers.lamb import Lamb
from pipeline.optimizers.lion import Lion
from pipeline.optimizers.muon import Muon
from pipeline.optimizers.stable_adamw import StableAdamW

OPTIMIZERS: Mapping[str, type[Optimizer]] = {
    one.model_fields["kind"].default: one
    for one in (
        AdamW,
        Lion,
        Lamb,
        Adagrad,
        Adafactor,
        StableAdamW,
        Muon,
    )
}
"""The optimizers by kind; the first one is the default."""


def union_of(choices: Mapping[str, type[Optimizer]]) -> Any:
    """The type of settings of any of these optimizers."""

    def kind_of(value: Any) -> Any:
        is_plain = isinstance(value, dict)
        return value.get("kind", next(iter(OPTIMIZERS))) if is_plain else getattr(value, "kind", None)

    members = tuple(Annotated[one, Tag(kind)] for kind, one in choices.items())
    return Annotated[Union[members], Discriminator(kind_of)]  # noqa: UP007


if TYPE_CHECKING:
    OptimizerChoice = Optimizer
else:
    OptimizerChoice = union_of(OPTIMIZERS)
    """Settings of any optimizer; `kind: adamw` unless another is named."""

WHOLE_STATE = frozenset(name for one in OPTIMIZERS.values() for name in one.WHOLE_STATE)
"""Names of state tensors that are never split over workers, in any optimizer."""
