"""What training, checkpoints and planning see of the engine that updates the weights. DeepSpeed is behind it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

SUB_GROUP_ELEMENTS = 100_000_000
"""ZeRO-3 updates this many elements of a rank's share at a time, plus the parameter that exceeds them."""


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
