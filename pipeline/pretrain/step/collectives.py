"""Collectives on a few numbers or objects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def summed(sums: Tensor, others: Sequence[float] = ()) -> tuple[list[float], list[float]]:
    """Sums over ranks, in one message; equal to the last bit on all of them.

    Args:
        sums: [numbers] float64 on this rank's device.
        others: more numbers, from the host.

    Returns:
        The sums of `sums`, and the sums of `others`.
    """
    vector = torch.cat([sums, torch.tensor(others, dtype=torch.float64).to(sums.device)])
    dist.all_reduce(vector)
    values = vector.tolist()
    return values[: len(sums)], values[len(sums) :]


def from_rank_zero(value: Any) -> Any:
    """Rank 0's object, on every rank; the other ranks' arguments are ignored."""
    box = [value]
    dist.broadcast_object_list(box, src=0)
    return box[0]


def gathered(value: Any) -> list[Any]:
    """The objects of all ranks, by rank."""
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, value)
    return found
