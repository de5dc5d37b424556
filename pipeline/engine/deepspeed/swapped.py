"""Optimizer state that ZeRO-3 keeps in files: what is in them, as tensors, between two updates.

For every update DeepSpeed reads a master and its state into memory, one sub-group after the other, and writes them
back past the page cache (Rajbhandari et al. 2021, section 5.2); its own tensors are empty in between. Mapped into
memory, the files are tensors like those of every other run: a save copies them, a restoration fills them where they
lie.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cluster.artefacts.storage import storage_errors


def swapped(optimizer: Any) -> dict[Tensor, Tensor]:
    """By tensor of DeepSpeed that is empty now, its values: [elements] of the same type, mapped from its file.

    Writing to them changes the state. They must be let go before the next update, which replaces the files' contents.

    Args:
        optimizer: DeepSpeed's, of any stage. Nothing is swapped below stage 3, nor are sub-groups of less than 1 MiB.
    """
    return {
        context.compute_tensor: _mapped(context.swap_path, info.numel(), info.dtype())
        for info in _infos(optimizer)
        for context in info.tensors
    }


def reserve(optimizer: Any, keys: Collection[str]) -> None:
    """Give every swap file its blocks on the disk before the first update: DeepSpeed does not look whether it could
    write, and would go on with what was there.

    Args:
        keys: of the state that the optimizer keeps for each master.

    Raises:
        StorageError: the disk is full.
    """
    swapper = _swapper(optimizer)
    if swapper is None:
        return
    for number, master in enumerate(optimizer.fp32_partitioned_groups_flat):
        info = swapper.swap_params_info.get(master.ds_id)
        if info is None:
            continue
        path = info.tensors[0].swap_path
        weights = optimizer.fp16_partitioned_groups_flat[number]
        with storage_errors(Path(path)):
            if weights is not None and not torch.equal(_written(path, info), weights.to(info.dtype()).cpu()):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        size_bytes = swapper._io_aligned_numel(info.numel()) * swapper.swap_element_size
        for key in keys:
            _allocate(os.path.join(info.swap_folder, f"{key}-{info.param_id}.tensor.swp"), size_bytes)
        for group, offset, numel in optimizer.grad_position.values():
            if group == number and swapper.is_swappable_tensor(numel=numel):
                aligned = numel - numel % swapper.numel_alignment
                name = f"{info.param_id}_gradient_{offset}_{aligned}.tensor.swp"
                _allocate(os.path.join(info.swap_folder, name), aligned * swapper.swap_element_size)


def put_away(optimizer: Any, master: Tensor) -> None:
    """Write the state that was given to a swapped master to its files, in place of the state it had.

    Args:
        master: whose `optimizer.state` has new tensors in memory; they are empty afterwards. Nothing is done for one
            that is not swapped.
    """
    info = next((info for info in _infos(optimizer) if info.tensors[0].compute_tensor is master), None)
    if info is None:
        return
    info.tensors, info.has_state_tensors = info.tensors[:1], False
    swapper = optimizer.optimizer_swapper
    swapper._update_param_state_info(info, master)
    for context in info.tensors[1:]:
        values = context.compute_tensor
        _allocate(context.swap_path, swapper._io_aligned_numel(values.numel()) * values.element_size())
        _mapped(context.swap_path, values.numel(), values.dtype).copy_(values)
        context.release_memory()


def forget_gradients(optimizer: Any) -> None:
    """Leave nothing of a discarded update's gradients in memory: what is not yet written would be written later, over
    the gradients of the next update."""
    swapper = _swapper(optimizer)
    if swapper is None:
        return
    swapper.flush_gradients()
    for info in _infos(optimizer):
        info.release_unswapped_gradients()


def _written(path: str, info: Any) -> Tensor:
    """What arrived in the file of a master; nothing where it is too short to be mapped."""
    size_bytes = info.numel() * info.dtype().itemsize
    if os.path.getsize(path) < size_bytes:
        return torch.empty(0)
    return _mapped(path, info.numel(), info.dtype())


def _swapper(optimizer: Any) -> Any:
    """DeepSpeed's part that reads and writes the files; None where nothing is swapped."""
    return getattr(optimizer, "optimizer_swapper", None)


def _infos(optimizer: Any) -> list[Any]:
    """DeepSpeed's records of swapped masters, each with the master first among its tensors."""
    swapper = _swapper(optimizer)
    return [] if swapper is None else list(swapper.swap_params_info.values())


def _allocate(path: str, size_bytes: int) -> None:
    """Make a file as long as what is read from it, which is whole blocks."""
    with storage_errors(Path(path)), open(path, "ab") as file:
        # A mapped file that is only said to be so long ends the process where the disk is full.
        os.posix_fallocate(file.fileno(), 0, size_bytes)


def _mapped(path: str, numel: int, dtype: torch.dtype) -> Tensor:
    """The first elements of a file."""
    return torch.from_file(path, shared=True, size=numel, dtype=dtype)
