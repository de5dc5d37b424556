"""Weights and optimizer state as whole tensors, whatever number of ranks in whatever ZeRO stage holds them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from pipeline.engine.deepspeed.masters import Master, is_sharded, own_masters, placed, shared_numbers
from pipeline.engine.deepspeed.restoring import publish_masters
from pipeline.engine.interface import WEIGHTS, WholeState


@torch.no_grad()
def gather(engine: Any, *, to_all: bool, with_state: bool) -> WholeState:
    """As `TrainingEngine.gather`.

    Args:
        engine: a DeepSpeedEngine.
    """
    masters = own_masters(engine)
    keys = [WEIGHTS, *(_keys(masters) if with_state else ())]
    numbers = shared_numbers(master.state for master in masters) if with_state else {}
    found: WholeState = {}
    for name, parameter in engine.module.named_parameters():
        if not parameter.requires_grad:
            continue
        shape = getattr(parameter, "ds_shape", parameter.shape)
        found[name] = {}
        for key in keys:
            whole = _gathered(engine, masters, name, key, shape.numel(), to_all=to_all)
            if whole is not None:
                found[name][key] = whole.view(shape)
        found[name] |= {key: torch.as_tensor(value).clone() for key, value in numbers.items()}
    return found


@torch.no_grad()
def fill(engine: Any, whole: Mapping[str, Mapping[str, Tensor]]) -> None:
    """As `TrainingEngine.fill`.

    Args:
        engine: a DeepSpeedEngine without gradients.
    """
    for master in own_masters(engine):
        state = engine.optimizer.state[master.weights]
        state.clear()
        # A share that is all padding has numbers such as the step, too.
        some = whole[master.extents[0].name] if master.extents else next(iter(whole.values()))
        for key, value in some.items():
            if is_sharded(key, value) and key != WEIGHTS:
                state[key] = torch.zeros_like(master.weights, requires_grad=False)
            elif key != WEIGHTS:
                state[key] = placed(engine.optimizer, value, master.weights)
        for extent in master.extents:
            for key, value in whole[extent.name].items():
                if is_sharded(key, value) or key == WEIGHTS:
                    target = master.weights if key == WEIGHTS else state[key]
                    values = value.view(-1).narrow(0, extent.start, extent.size)
                    target.detach().view(-1).narrow(0, extent.offset, extent.size).copy_(values)
    publish_masters(engine)


def _gathered(
    engine: Any, masters: list[Master], name: str, key: str, size: int, *, to_all: bool
) -> Tensor | None:
    """One tensor of a parameter, flat and in host memory; None on ranks that do not get it."""
    device = engine.device
    whole = torch.zeros(size, dtype=torch.float32, device=device)
    for extent, values in _shares(masters, name, key):
        share = values.detach().view(-1).narrow(0, extent.offset, extent.size)
        whole.narrow(0, extent.start, extent.size).copy_(share)
    if engine.zero_optimization_stage() and dist.get_world_size() > 1:
        # Each element is on one rank, and zeros are on the others. Added as integers, its bits stay the same.
        bits = whole.view(torch.int32)
        dist.all_reduce(bits) if to_all else dist.reduce(bits, 0)
    return whole.cpu() if to_all or dist.get_rank() == 0 else None


def _shares(masters: list[Master], name: str, key: str) -> Iterator[tuple[Any, Tensor]]:
    for master in masters:
        for extent in master.extents:
            if extent.name == name and (key == WEIGHTS or key in master.state):
                yield extent, master.weights if key == WEIGHTS else master.state[key]


def _keys(masters: list[Master]) -> list[str]:
    """Names of the state tensors with one element per weight; the same on all ranks."""
    return sorted({key for one in masters for key, value in one.state.items() if is_sharded(key, value)})
