"""Elements of parameters that the optimizer of a rank updates, in every ZeRO stage.

An optimizer updates *masters*: float32 tensors that are whole parameters (stage 0), or that hold this rank's share of
a list of parameters, one after the other (stages 1 to 3). A master's state (moments, averages) has the same elements.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pipeline.optimizers import WHOLE_STATE

Sizes = Sequence[tuple[str, int]]
"""Names and numbers of elements of parameters, in the order of the master."""


@dataclass(frozen=True, slots=True)
class Extent:
    """A contiguous range of a flattened parameter, and its place in a master."""

    name: str
    """Name of the parameter, as in `named_parameters()`."""
    start: int
    """Index of the first element in the flattened parameter."""
    offset: int
    """Index of the first element in the master."""
    size: int
    """Number of elements."""


@dataclass(frozen=True, slots=True)
class Master:
    """A tensor that the optimizer of a rank updates, or a copy of it from a checkpoint."""

    weights: Tensor
    """float32; flat where it holds several parameters. The key of its state in a live optimizer."""
    state: Mapping[str, Any]
    """The optimizer's state of it, by key: a tensor with an element per weight (and perhaps padding), or one number
    for all weights."""
    extents: tuple[Extent, ...]


def extents_of(sizes: Sizes, stage: int, world_size: int, rank: int) -> tuple[Extent, ...]:
    """The extents of a list of parameters in a rank's master; padding is left out.

    Stages 1 and 2 concatenate the parameters and cut the result into equal parts; stage 3 cuts every parameter into
    equal parts; in stage 0 every rank holds a whole parameter, alone in its master.
    """
    if stage == 3:
        return tuple(_cut_each(sizes, world_size, rank))
    if stage == 0:
        return tuple(_cut_concatenated(sizes, 0, sum(size for _, size in sizes)))
    # DeepSpeed aligns parts to two elements for NCCL.
    part = -(-sum(size for _, size in sizes) // (2 * world_size)) * 2
    return tuple(_cut_concatenated(sizes, rank * part, (rank + 1) * part))


def own_masters(engine: Any) -> list[Master]:
    """The masters of this rank of a DeepSpeedEngine, in the order of the optimizer's groups; the next update changes
    their tensors."""
    optimizer, stage = engine.optimizer, engine.zero_optimization_stage()
    if stage == 0:
        return list(_whole_masters(optimizer))
    if stage == 3:
        tensors = optimizer.fp32_partitioned_groups_flat
    elif has_whole_gradients(optimizer):
        tensors = optimizer.fp32_groups_flat_partition
    else:
        tensors = optimizer.single_partition_of_fp32_groups
    return [
        Master(
            weights,
            optimizer.state.get(weights, {}),
            extents_of(
                [(name, shape.numel()) for name, shape in shapes.items()],
                stage,
                engine.dp_world_size,
                engine.global_rank,
            ),
        )
        for weights, shapes in zip(tensors, engine._get_zero_param_shapes(), strict=True)
    ]


def has_whole_gradients(optimizer: Any) -> bool:
    """Whether it is DeepSpeed's BF16_Optimizer, its stage 1 for bf16: it holds whole float32 gradients all the time."""
    return hasattr(optimizer, "fp32_groups_flat_partition")


def clear_padding(engine: Any) -> None:
    """Zero the elements of this rank's masters of a DeepSpeedEngine that belong to no parameter.

    ZeRO-3 cuts every parameter into equal parts, and DeepSpeed leaves uninitialized memory at the end of the last one.
    Checkpoints hold it, and the same training must give the same checkpoint.
    """
    for master in own_masters(engine):
        flat, end = master.weights.detach().view(-1), 0
        for extent in master.extents:
            flat[end : extent.offset] = 0
            end = extent.offset + extent.size
        flat[end:] = 0


def _whole_masters(optimizer: Any) -> Iterator[Master]:
    """Stage 0: masters are the network's own parameters in fp32, float32 copies of them otherwise."""
    copies = getattr(optimizer, "fp32_groups", None)
    for number, group in enumerate(optimizer.param_groups):
        tensors = copies[number] if copies is not None else group["params"]
        for (name, size), weights in zip(group["sizes"], tensors, strict=True):
            yield Master(weights, optimizer.state.get(weights, {}), (Extent(name, 0, 0, size),))


def _cut_concatenated(sizes: Sizes, first: int, last: int) -> Iterator[Extent]:
    position = 0
    for name, size in sizes:
        start, stop = max(position, first), min(position + size, last)
        if start < stop:
            yield Extent(name, start - position, start - first, stop - start)
        position += size


def _cut_each(sizes: Sizes, world_size: int, rank: int) -> Iterator[Extent]:
    offset = 0
    for name, size in sizes:
        part = -(-size // world_size)
        start, stop = rank * part, min((rank + 1) * part, size)
        if start < stop:
            yield Extent(name, start, offset, stop - start)
        offset += part


def shared_numbers(states: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Numbers that masters share, such as the step, by key: of each the largest. Without ZeRO, a parameter that no loss
    depends on has none."""
    found: dict[str, Any] = {}
    for state in states:
        for key, value in state.items():
            if not torch.is_tensor(value) or value.dim() == 0:
                found[key] = max(found.get(key, value), value)
    return found


def placed(optimizer: Any, value: Tensor, weights: Tensor) -> Tensor:
    """A copy of a tensor of an optimizer's state, where the optimizer wants it: single numbers lie in host memory, but
    for torch's fused kernels."""
    fused = any(group.get("fused") for group in optimizer.param_groups)
    return value.to(weights.device if fused or value.dim() else "cpu", copy=True)


def is_sharded(key: str, value: Any) -> bool:
    """Whether a value of an optimizer's state has one element for each element of its master."""
    return torch.is_tensor(value) and value.dim() > 0 and key not in WHOLE_STATE
