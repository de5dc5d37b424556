"""Filling a live engine from a checkpoint, of any number of workers and any ZeRO stage, in place.

One way serves a fresh start, another number of workers and a return to an older step of the same process. Tensors are
written where they lie, so that whatever points at them, inside DeepSpeed or outside, still does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from cluster.artefacts.errors import ResumeRefusedError
from pipeline.engine.deepspeed.saved_state import SavedMaster, SavedState
from pipeline.engine.deepspeed.shards import Piece, Shard, is_sharded, own_shards
from pipeline.engine.deepspeed.swapped import put_away

_COUNTERS = ("global_steps", "global_samples", "skipped_steps")
"""What a DeepSpeedEngine counts and writes into its checkpoints."""


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Elements that a master takes over from a saved one."""

    source: SavedMaster
    first: int
    """In the source."""
    offset: int
    """In the own master."""
    size: int

    def copy(self, source: Tensor, target: Tensor) -> None:
        """Copy them between tensors laid out as the masters are."""
        values = source.detach().view(-1).narrow(0, self.first, self.size)
        target.detach().view(-1).narrow(0, self.offset, self.size).copy_(values)


@torch.no_grad()
def restore(engine: Any, saved: SavedState, *, leave_out: Collection[str] = ()) -> None:
    """Make weights, optimizer state and loss scale those of a checkpoint. All ranks must call it.

    Args:
        engine: a DeepSpeedEngine without gradients.
        leave_out: keys of the optimizer's state that are not wanted.

    Raises:
        ResumeRefusedError: the checkpoint has not all parameters of the network, or others.
        CorruptCheckpointError: its files are not what DeepSpeed writes.
    """
    shards = own_shards(engine)
    with saved.errors():
        _require_all(engine.module, shards, saved)
    for shard in shards:
        with saved.errors():
            _restore_shard(shard, engine.optimizer.state, saved, leave_out)
        put_away(engine.optimizer, shard.master)
    with saved.errors():
        _restore_loss_scale(engine.optimizer, saved)
        for counter in _COUNTERS:
            setattr(engine, counter, saved.model[counter])
    publish_masters(engine)


def publish_masters(engine: Any) -> None:
    """Give the network the weights of the masters: rounded to its precision, gathered from all ranks."""
    stage, optimizer = engine.zero_optimization_stage(), engine.optimizer
    if stage == 3:
        optimizer.checkpoint_event_prologue()
        for number, shard in enumerate(own_shards(engine)):
            own = shard.master.data
            shard.master.data = shard.weights.data
            optimizer._reassign_or_swap_out_partitioned_parameters(number)
            shard.master.data = own
        optimizer.checkpoint_event_epilogue()
    elif stage:
        optimizer.update_lp_params()
    else:
        parameters = dict(engine.module.named_parameters())
        for shard in own_shards(engine):
            for piece in shard.pieces:
                values = shard.weights.view(-1).narrow(0, piece.offset, piece.size)
                parameters[piece.name].view(-1).copy_(values)


def _require_all(network: nn.Module, shards: list[Shard], saved: SavedState) -> None:
    known = {name: size for row in saved.rows for name, size in row}
    own = {name: getattr(one, "ds_numel", one.numel()) for name, one in network.named_parameters()}
    if other := sorted(name for name, size in own.items() if known.get(name, size) != size):
        raise ResumeRefusedError(
            f"Of {other[0]} the checkpoint has {known[other[0]]} numbers, and the network {own[other[0]]}"
            f" ({len(other)} parameters differ so).",
            kept="the checkpoint, unchanged",
            next_step="resume with the network that the run was saved with",
        )
    missing = sorted({piece.name for shard in shards for piece in shard.pieces} - known.keys())
    if missing:
        raise ResumeRefusedError(
            f"The checkpoint lacks {len(missing)} parameters of the network, such as {missing[0]}.",
            kept="the checkpoint, unchanged",
            next_step="resume with the settings that the run was saved with",
        )


def _restore_shard(shard: Shard, states: Any, saved: SavedState, leave_out: Collection[str]) -> None:
    """Fill a master and its state; what the checkpoint does not know of is removed."""
    stretches = [stretch for piece in shard.pieces for stretch in _overlaps(piece, saved)]
    # A share that is all padding has no stretch, but numbers such as the step: they are the same everywhere.
    some = stretches[0].source if stretches else saved.masters(0)[0]
    keys = [key for key in some.state if key not in leave_out]
    state = states[shard.master]
    for key in [key for key in state if key not in keys]:
        del state[key]
    for key in keys:
        value = some.state[key]
        if not is_sharded(key, value):
            state[key] = _copied(value, shard.weights.device) if torch.is_tensor(value) else value
        elif not (torch.is_tensor(own := state.get(key)) and own.numel() == shard.weights.numel()):
            state[key] = torch.zeros_like(shard.weights, requires_grad=False)
    for stretch in stretches:
        stretch.copy(stretch.source.weights, shard.weights)
        for key in keys:
            if is_sharded(key, value := stretch.source.state[key]):
                stretch.copy(value, state[key])


def _overlaps(piece: Piece, saved: SavedState) -> Iterator[_Stretch]:
    """Where the elements of a piece come from."""
    stop = piece.start + piece.size
    for found, source in saved.holders(piece.name, piece.start, stop):
        start = max(piece.start, found.start)
        size = min(stop, found.start + found.size) - start
        yield _Stretch(source, found.offset + start - found.start, piece.offset + start - piece.start, size)


def _copied(value: Tensor, device: torch.device) -> Tensor:
    # torch's optimizers want single numbers, such as the step, where they were saved from: on the CPU.
    return value.to(device if value.dim() else value.device, copy=True)


def _restore_loss_scale(optimizer: Any, saved: SavedState) -> None:
    """Loss scaling goes on where it was; between ZeRO and no ZeRO only the scale itself is taken over."""
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
