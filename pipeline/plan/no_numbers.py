"""Results of data-dependent operations on tensors without data, which have a shape only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor


def zero(tensor: Tensor) -> float | int:
    """The number of a tensor of one element. Networks read most numbers only to refuse wrong inputs."""
    return 0.0 if tensor.dtype.is_floating_point else 0


def every_place(tensor: Tensor) -> Tensor:
    """The indices of as many places as there can be: [elements, dimensions] int64."""
    return tensor.new_empty((tensor.numel(), tensor.dim()), dtype=torch.int64)


DATA_DEPENDENT: Mapping[Any, Callable[..., Any]] = {
    torch.ops.aten._local_scalar_dense.default: zero,
    torch.ops.aten.nonzero.default: every_place,
}
"""Answers by operation, each a function of the operation's arguments."""
