"""Optimizers, one paper per file; see `base.Optimizer` for what a file offers."""

from __future__ import annotations

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

OPTIMIZERS: tuple[type[Optimizer], ...] = (
    AdamW,
    Lion,
    Lamb,
    Adagrad,
    Adafactor,
    StableAdamW,
    Muon,
)
"""The optimizers; the first is taken where a configuration names none."""
_DEFAULT = AdamW.model_fields["kind"].default


def _kind(value: Any) -> Any:
    return value.get("kind", _DEFAULT) if isinstance(value, dict) else getattr(value, "kind", None)


if TYPE_CHECKING:
    OptimizerChoice = Optimizer
else:
    OptimizerChoice = Annotated[
        Union[tuple(Annotated[one, Tag(one.model_fields["kind"].default)] for one in OPTIMIZERS)],  # noqa: UP007
        Discriminator(_kind),
    ]
    """Settings of any optimizer; `kind: adamw` unless another is named."""

OFFLOADABLE = tuple(one.model_fields["kind"].default for one in OPTIMIZERS if one.OFFLOADABLE)
"""Kinds whose state can be offloaded."""
WHOLE_STATE = frozenset(name for one in OPTIMIZERS for name in one.WHOLE_STATE)
"""Names of state tensors that are not split over workers, in any optimizer."""
