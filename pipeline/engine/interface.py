"""Settings, results and formats of the training engine, for training, checkpoints and planning; without torch's kernels
or DeepSpeed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from pipeline.optimizers import Optimizer
    from pipeline.run.config import PretrainConfig
    from pipeline.run.shared_settings import ZeroConfig

SUB_GROUP_ELEMENTS = 100_000_000
"""ZeRO-3 updates this many elements of a rank's share at a time, plus the parameter that exceeds them."""


WEIGHTS = "weights"
WholeState = dict[str, dict[str, Tensor]]
"""By name of a trained parameter: its float32 `weights`, and the optimizer's state of it by key."""


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """The settings that an engine is made from."""

    zero: ZeroConfig
    """ZeRO stage and offload."""
    optimizer: Optimizer
    """Makes the optimizer."""
    precision: str = "fp32"
    """fp32, bf16 or fp16."""
    ema_decay: float | None = None
    """Decay of the average of the weights; None without one."""
    micro_batch_size: int = 1
    """Samples in one forward pass; only written into DeepSpeed's configuration."""

    @classmethod
    def of(cls, config: PretrainConfig) -> EngineSettings:
        """The settings of a run."""
        decay = config.ema.decay if config.ema is not None else None
        return cls(config.zero, config.optimizer, config.precision, decay, config.batch.micro_batch_size)


@dataclass(frozen=True, slots=True)
class Update:
    """The outcome of `Engine.update`."""

    grad_norm: float
    """Global norm of the gradient before clipping; NaN when the update was discarded, infinite when it overflowed."""
    applied: bool
    """Whether weights changed."""
    loss_scale: float | None
    """The factor on losses in the next update (fp16); None in other precisions."""


@dataclass(frozen=True, slots=True)
class ParameterSlice:
    """The part of one parameter that this rank holds: a contiguous range of the flattened parameter."""

    name: str
    """Name of the parameter, as in the network's `named_parameters()`."""
    start: int
    """Index of the first element in the flattened parameter."""
    values: Tensor
    """[elements] float32, a view of the live tensor: the next update changes it."""
