"""What training, checkpoints and planning see of the engine that updates the weights. DeepSpeed is behind it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from pipeline.run.settings import EmaConfig, ZeroConfig

SUB_GROUP_ELEMENTS = 100_000_000
"""ZeRO-3 updates this many elements of a rank's share at a time, plus the parameter that exceeds them."""


WEIGHTS = "weights"
WholeState = dict[str, dict[str, Tensor]]
"""By name of a trained parameter: its float32 `weights`, and the optimizer's state of it by key."""


class EngineConfig(Protocol):
    """The settings that an engine is made from, as a `PretrainConfig` has them."""

    @property
    def precision(self) -> str:
        """fp32, bf16 or fp16."""
        ...

    @property
    def zero(self) -> ZeroConfig:
        """What is sharded."""
        ...

    @property
    def ema(self) -> EmaConfig | None:
        """The average of the weights; None without one."""
        ...

    @property
    def batch(self) -> BatchConfig:
        """How many samples are in a forward pass."""
        ...

    @property
    def optimizer(self) -> OptimizerConfig:
        """Makes the optimizer."""
        ...


class BatchConfig(Protocol):
    """The part of a batch's settings that an engine needs."""

    @property
    def micro_batch_size(self) -> int:
        """Samples in one forward pass."""
        ...


class OptimizerConfig(Protocol):
    """The settings of an optimizer; see `pipeline.optimizers.base.Optimizer`."""

    @property
    def clip(self) -> float | None:
        """Largest global gradient norm; 0 or None does not clip."""
        ...

    def implementation(self, machine: Literal["cuda", "compiler", "plain"]) -> str:
        """Name of the class that updates weights on a machine."""
        ...

    def make(self, name: str, model: nn.Module, kernels: Any) -> torch.optim.Optimizer:
        """The optimizer of a network; its groups hold `lr_scale` and `sizes`."""
        ...


@dataclass(frozen=True, slots=True)
class Update:
    """The outcome of `TrainingEngine.update`."""

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


@dataclass(slots=True)
class Captured:
    """The engine's state for a checkpoint, as this rank writes it."""

    files: dict[str, Any] = field(default_factory=dict)
    """By file name, the contents to write with `torch.save`."""
    error: Exception | None = None
    """What went wrong on this rank; then `files` is incomplete."""


class TrainingEngine(Protocol):
    """One rank's network and optimizer.

    An update is `__call__` and `backward` for each micro-batch, the last one with `last=True`, and then `update`. The
    number of micro-batches may differ between updates, but not between ranks.
    """

    device: torch.device
    optimizer_name: str
    """Class of the optimizer. The state of one class fits no other."""

    def __call__(self, **tensors: Tensor) -> Any:
        """Run the forward pass; returns what the network returns."""
        ...

    def backward(self, loss: Tensor, *, last: bool) -> None:
        """Add the gradient of a micro-batch's loss.

        Args:
            loss: scalar. Its gradients are added over micro-batches and averaged over ranks.
            last: whether this is the update's last micro-batch; gradients are complete and reduced afterwards.
        """
        ...

    def update(self, rate: float, *, discard: bool = False) -> Update:
        """Update the weights, unless `discard` is given or the gradient's norm is not finite.

        A skipped update leaves weights, optimizer state, step numbers and the average as they were, bit for bit; the
        gradients are dropped. All ranks decide alike when all pass the same `discard`.

        Args:
            rate: learning rate of optimizer groups whose `lr_scale` is 1.
        """
        ...

    @property
    def network(self) -> nn.Module:
        """The network as `__call__` runs it."""
        ...

    def train(self) -> None:
        """Switch to training: dropout is on."""
        ...

    def eval(self) -> None:
        """Switch to evaluation: dropout is off."""
        ...

    def slices(self, kind: Literal["weights", "average"]) -> Iterator[ParameterSlice]:
        """This rank's share of the float32 master weights, or of their moving average; no copies, no communication.

        Over all ranks every element of every parameter comes exactly once. In ZeRO stage 0, where all ranks hold
        everything, rank 0 yields all of it. Before the first update the average equals the weights.
        """
        ...

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The shape of every whole parameter by name, in the network's order."""
        ...

    def capture(self, copy: Callable[[Any], Any]) -> Captured:
        """Collect the state that `restore` needs, as copies. All ranks must call it, between two updates.

        Never raises, because the other ranks may already wait in a collective: see `Captured.error`.

        Args:
            copy: returns a copy of a tree of tensors and plain values.
        """
        ...

    def restore(self, directory: Path) -> None:
        """Restore weights, optimizer state and loss scale in place, at any time. All ranks must call it.

        Any number of ranks in any ZeRO stage may have saved the state. The same number of ranks in the same stage
        continues bit for bit; others up to the order of floating-point sums.

        Args:
            directory: holds the files of `capture` of all ranks.

        Raises:
            ResumeRefusedError: the files lack parameters of the network.
            CorruptCheckpointError: a file is missing or damaged, or was not written by DeepSpeed.
        """
        ...

    def gather(self, *, to_all: bool, with_state: bool) -> WholeState:
        """Collect the trained parameters as whole tensors in host memory. All ranks must call it, between two updates.

        Args:
            to_all: whether all ranks get the tensors; otherwise only rank 0.
            with_state: whether the optimizer's state comes with the weights.
        """
        ...

    def fill(self, whole: WholeState) -> None:
        """Overwrite weights and optimizer state with those of `gather`, from any number of ranks in any stage."""
        ...

    def close(self) -> None:
        """Release memory and hooks. The engine is not used afterwards."""
        ...
