"""Which elements of which parameter the optimizer of a rank updates, in every ZeRO stage.

An optimizer updates *masters*: float32 tensors that are whole parameters (stage 0), or that hold this rank's share of
a row of parameters, one after the other (stages 1 to 3). A master's state (moments, averages) has the same elements.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pipeline.engine.deepspeed.swapped import swapped
from pipeline.optimizers import WHOLE_STATE

Sizes = Sequence[tuple[str, int]]
"""Names and numbers of elements of parameters, in the order in which a master holds them."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of a parameter inside a master."""

    name: str
    """Of the parameter, as in `named_parameters()`."""
    start: int
    """Its first element in the flattened parameter."""
    offset: int
    """Its first element in the master."""
    size: int
    """Elements."""


@dataclass(frozen=True, slots=True)
class Shard:
    """A master of this rank."""

    master: Tensor
    """What the optimizer keeps state for; empty while its values lie in a file."""
    weights: Tensor
    """Its values: float32; flat where it holds several parameters."""
    state: Mapping[str, Any]
    """Its state in the optimizer, by key."""
    group: int
    """Index of its optimizer group."""
    pieces: tuple[Piece, ...]


def pieces_of(sizes: Sizes, stage: int, world_size: int, rank: int) -> tuple[Piece, ...]:
    """What the master of a row of parameters holds on a rank; padding is left out.

    Stages 1 and 2 lay the row out as one stretch and cut that into equal parts; stage 3 cuts every parameter into equal
    parts; in stage 0 every rank holds all.
    """
    if stage == 3:
        return tuple(_cut_each(sizes, world_size, rank))
    if stage == 0:
        return tuple(_cut_row(sizes, 0, sum(size for _, size in sizes)))
    # DeepSpeed aligns parts to two elements for NCCL.
    part = -(-sum(size for _, size in sizes) // (2 * world_size)) * 2
    return tuple(_cut_row(sizes, rank * part, (rank + 1) * part))


def own_shards(engine: Any) -> list[Shard]:
    """The masters of this rank, in the order of the optimizer's groups, as they are between two updates.

    Tensors are live: the next update changes them, or lets go of them where they lie in files.

    Args:
        engine: a DeepSpeedEngine.
    """
    optimizer, stage = engine.optimizer, engine.zero_optimization_stage()
    if stage == 0:
        return _whole_shards(engine)
    masters = (
        optimizer.single_partition_of_fp32_groups if stage < 3 else optimizer.fp32_partitioned_groups_flat
    )
    groups = (
        range(len(masters))
        if stage < 3
        else [optimizer.sub_group_to_group_id[i] for i in range(len(masters))]
    )
    files: Any = swapped(optimizer)
    return [
        Shard(
            master,
            files.get(master, master),
            {
                key: files.get(value, value) if torch.is_tensor(value) else value
                for key, value in optimizer.state.get(master, {}).items()
            },
            group,
            pieces_of(
                [(name, shape.numel()) for name, shape in shapes.items()],
                stage,
                engine.dp_world_size,
                engine.global_rank,
            ),
        )
        for master, group, shapes in zip(masters, groups, engine._get_zero_param_shapes(), strict=True)
    ]


def clear_padding(engine: Any) -> None:
    """Zero the elements of this rank's masters that belong to no parameter.

    ZeRO-3 cuts every parameter into equal parts, and DeepSpeed leaves the end of the last one as the memory was.
    Checkpoints hold it, and the same training must give the same checkpoint.
    """
    for shard in own_shards(engine):
        flat, end = shard.weights.detach().view(-1), 0
        for piece in shard.pieces:
            flat[end : piece.offset] = 0
            end = piece.offset + piece.size
        flat[end:] = 0


def _whole_shards(engine: Any) -> list[Shard]:
    """Stage 0: masters are the network's own parameters in fp32, float32 copies of them otherwise."""
    optimizer = engine.optimizer
    flat, copies = getattr(optimizer, "fp32_groups_flat", None), getattr(optimizer, "fp32_groups", None)
    shards = []
    for number, group in enumerate(optimizer.param_groups):
        sizes = group["sizes"]
        if flat is not None:
            shards.append(_whole_shard(optimizer, flat[number], number, pieces_of(sizes, 0, 1, 0)))
            continue
        masters = copies[number] if copies is not None else group["params"]
        for (name, size), master in zip(sizes, masters, strict=True):
            shards.append(_whole_shard(optimizer, master, number, (Piece(name, 0, 0, size),)))
    return shards


def _whole_shard(optimizer: Any, master: Tensor, group: int, pieces: tuple[Piece, ...]) -> Shard:
    return Shard(master, master, optimizer.state.get(master, {}), group, pieces)


def _cut_row(sizes: Sizes, first: int, last: int) -> Iterator[Piece]:
    position = 0
    for name, size in sizes:
        start, stop = max(position, first), min(position + size, last)
        if start < stop:
            yield Piece(name, start - position, start - first, stop - start)
        position += size


def _cut_each(sizes: Sizes, world_size: int, rank: int) -> Iterator[Piece]:
    offset = 0
    for name, size in sizes:
        part = -(-size // world_size)
        start, stop = rank * part, min((rank + 1) * part, size)
        if start < stop:
            yield Piece(name, start, offset, stop - start)
        offset += part


def is_sharded(key: str, value: Any) -> bool:
    """Whether a value of an optimizer's state has an element for every element of its master."""
    return torch.is_tensor(value) and value.dim() > 0 and key not in WHOLE_STATE
