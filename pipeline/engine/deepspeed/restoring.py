"""Restore a live engine in place from a checkpoint of any number of ranks and any ZeRO stage.

One function serves a resumption, another number of ranks, and a rollback within the same process. Tensors are
overwritten, not replaced, so that references to them, inside DeepSpeed or outside, stay valid.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from cluster.artefacts.errors import ResumeRefusedError
from pipeline.engine.deepspeed.masters import (
    Extent,
    Master,
    is_sharded,
    own_masters,
    placed,
    shared_numbers,
)
from pipeline.engine.deepspeed.saved_state import SavedMaster, SavedState

_COUNTERS = ("global_steps", "global_samples", "skipped_steps")
"""What a DeepSpeedEngine counts and writes into its checkpoints."""


@dataclass(frozen=True, slots=True)
class _Transfer:
    """A range of elements to copy from a saved master to one of this rank."""

    source: SavedMaster
    first: int
    """Index of the first element in the source."""
    offset: int
    """Index of the first element in the own master."""
    size: int

    def copy(self, source: Tensor, target: Tensor) -> None:
        """Copy the range between tensors that are laid out as the masters."""
        values = source.detach().view(-1).narrow(0, self.first, self.size)
        target.detach().view(-1).narrow(0, self.offset, self.size).copy_(values)


@torch.no_grad()
def restore(engine: Any, saved: SavedState, *, leave_out: Collection[str] = ()) -> None:
    """Restore weights, optimizer state and loss scale. All ranks must call it.

    Args:
        engine: a DeepSpeedEngine without gradients.
        leave_out: keys of the optimizer's state not to restore.

    Raises:
        ResumeRefusedError: the parameters of checkpoint and network differ.
        CorruptCheckpointError: the files were not written by DeepSpeed.
    """
    masters = own_masters(engine)
    with saved.errors():
        _require_all(engine.module, masters, saved)
        # Where each parameter has a master of its own again, it also counts by itself.
        resharded = engine.zero_optimization_stage() and not saved.stage
        numbers = shared_numbers(one.state for one in saved.masters(0)) if resharded else {}
        for master in masters:
            _restore_master(master, engine.optimizer, saved, leave_out, numbers)
        _restore_loss_scale(engine.optimizer, saved)
        for counter in _COUNTERS:
            setattr(engine, counter, saved.model[counter])
    publish_masters(engine)


def publish_masters(engine: Any) -> None:
    """Copy the masters to the network's weights: rounded to its precision, gathered from all ranks."""
    stage, optimizer = engine.zero_optimization_stage(), engine.optimizer
    if stage == 3:
        optimizer.checkpoint_event_prologue()
        for number in range(len(optimizer.fp32_partitioned_groups_flat)):
            optimizer._reassign_or_swap_out_partitioned_parameters(number)
        optimizer.checkpoint_event_epilogue()
    elif stage:
        optimizer.update_lp_params()
    else:
        parameters = dict(engine.module.named_parameters())
        for master in own_masters(engine):
            for extent in master.extents:
                values = master.weights.view(-1).narrow(0, extent.offset, extent.size)
                parameters[extent.name].view(-1).copy_(values)


def _require_all(network: nn.Module, masters: list[Master], saved: SavedState) -> None:
    known = {name: size for row in saved.rows for name, size in row}
    own = {name: getattr(one, "ds_numel", one.numel()) for name, one in network.named_parameters()}
    if other := sorted(name for name, size in own.items() if known.get(name, size) != size):
        raise ResumeRefusedError(
            f"Parameter {other[0]} has {known[other[0]]} elements in the checkpoint and {own[other[0]]} in the network"
            f" ({len(other)} parameters differ in size).",
            kept="the checkpoint, unchanged",
            next_step="resume with the network that the run was saved with",
        )
    missing = sorted({extent.name for master in masters for extent in master.extents} - known.keys())
    if missing:
        raise ResumeRefusedError(
            f"The checkpoint lacks {len(missing)} parameters of the network, such as {missing[0]}.",
            kept="the checkpoint, unchanged",
            next_step="resume with the settings that the run was saved with",
        )


def _restore_master(
    master: Master,
    optimizer: Any,
    saved: SavedState,
    leave_out: Collection[str],
    numbers: Mapping[str, Any],
) -> None:
    """Fill a master and its optimizer state; state that the checkpoint lacks is removed.

    Args:
        numbers: single numbers of the state, in place of those beside the master's first elements.
    """
    transfers = [transfer for extent in master.extents for transfer in _transfers(extent, saved)]
    # A share that is all padding has no transfers, but numbers such as the step: they are the same everywhere.
    sources = [transfer.source for transfer in transfers] or saved.masters(0)[:1]
    some = {**max(sources, key=lambda source: len(source.state)).state, **numbers}
    keys = [key for key in some if key not in leave_out]
    state = optimizer.state[master.weights]
    for key in [key for key in state if key not in keys]:
        del state[key]
    for key in keys:
        value = some[key]
        if not is_sharded(key, value):
            state[key] = placed(optimizer, value, master.weights) if torch.is_tensor(value) else value
        elif not (torch.is_tensor(own := state.get(key)) and own.numel() == master.weights.numel()):
            state[key] = torch.zeros_like(master.weights, requires_grad=False)
    for transfer in transfers:
        transfer.copy(transfer.source.weights, master.weights)
        for key in keys:
            if is_sharded(key, some[key]):
                # A parameter that no loss depended on has no state without ZeRO.
                value = transfer.source.state.get(key)
                transfer.copy(
                    torch.zeros_like(transfer.source.weights) if value is None else value, state[key]
                )


def _transfers(extent: Extent, saved: SavedState) -> Iterator[_Transfer]:
    """Where in the checkpoint the elements of an extent are."""
    stop = extent.start + extent.size
    for found, source in saved.holders(extent.name, extent.start, stop):
        start = max(extent.start, found.start)
        size = min(stop, found.start + found.size) - start
        yield _Transfer(
            source, found.offset + start - found.start, extent.offset + start - extent.start, size
        )


def _restore_loss_scale(optimizer: Any, saved: SavedState) -> None:
    """Continue loss scaling; between ZeRO and no ZeRO only the scale itself is restored."""
    scaling = saved.loss_scaling
    config, scaler = getattr(optimizer, "loss_scale_config", None), getattr(optimizer, "loss_scaler", None)
    if config is not None and not saved.stage:
        for name, value in scaling.items():
            setattr(config, name, value)
    elif scaler is not None and saved.stage:
        # A scaler of another kind belongs to another precision.
        if scaling.get("dynamic") == scaler.dynamic:
            for name in scaling.keys() & vars(scaler).keys():
                setattr(scaler, name, scaling[name])
    elif getattr(optimizer, "loss_scale", None) is not None:
        optimizer.loss_scale = scaling.get("cur_scale", 1.0)
