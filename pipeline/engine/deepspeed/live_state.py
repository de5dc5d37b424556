"""Weights and optimizer state in and out of a live engine, whatever number of ranks in whatever ZeRO stage holds them.

`capture` lets DeepSpeed's `save_checkpoint` run into memory instead of files. `restore` serves a resumption, another
number of ranks, and a rollback within the same process; `gather` and `fill` give and take whole tensors. Tensors are
overwritten, not replaced, so that references to them, inside DeepSpeed or outside, stay valid.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from deepspeed.runtime.checkpoint_engine import CheckpointCommitInfo
from deepspeed.runtime.checkpoint_engine.checkpoint_engine import CheckpointEngine
from torch import Tensor

from cluster.artefacts.errors import ResumeRefusedError
from pipeline.engine.deepspeed.masters import (
    Extent,
    Master,
    is_sharded,
    own_masters,
    placed,
    shared_numbers,
)
from pipeline.engine.deepspeed.saved_state import SavedState
from pipeline.engine.interface import WEIGHTS, WholeState

Holders = Callable[[str, int, int], Iterable[tuple[Extent, Master]]]
"""Takes a parameter's name and the first and one past the last of some elements, and gives the masters that hold them,
each with the extent there."""
_COUNTERS = ("global_steps", "global_samples", "skipped_steps")
"""Counters that a DeepSpeedEngine writes into its checkpoints."""
_NOWHERE, _TAG = "nowhere", "state"
"""The directory that DeepSpeed is asked to save to; nothing is written there."""


class _CapturingEngine(CheckpointEngine):
    """Receives the state that DeepSpeed's own checkpoint engine would write to files."""

    def __init__(self, copy: Callable[[Any], Any], skipped: Collection[str]) -> None:
        """
        Args:
            skipped: names of weights of the network; only their type and shape are kept.
        """
        super().__init__()
        self._copy, self._skipped = copy, skipped
        self.files: dict[str, Any] = {}
        self.error: Exception | None = None

    def create(self, info: CheckpointCommitInfo) -> None:
        """Nothing needs preparing."""

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Directories are made where the files are written."""

    def save(self, state_dict: Any, path: str) -> None:
        """Copy the contents of the file `path`."""
        try:
            if self._skipped and state_dict.get("module"):
                module = {
                    name: torch.empty_like(value, device="meta") if name in self._skipped else value
                    for name, value in state_dict["module"].items()
                }
                state_dict = state_dict | {"module": module}
            name = Path(path).relative_to(Path(_NOWHERE, _TAG)).as_posix()
            self.files[name] = self._copy(state_dict)
        except Exception as error:
            self.error = error

    def load(self, path: str, map_location: Any = None) -> Any:
        """Only saves are captured."""
        raise NotImplementedError(path)

    def commit(self, info: CheckpointCommitInfo) -> bool:
        """The files are committed when all ranks have written theirs."""
        return True


def capture(engine: Any, copy: Callable[[Any], Any]) -> tuple[dict[str, Any], Exception | None]:
    """As `Engine.capture`, of a DeepSpeedEngine."""
    optimizer, stage = engine.optimizer, engine.zero_optimization_stage()
    # A restore reads these weights from the optimizer's float32 masters, and every other reader from the weights' own
    # file. In stage 3 DeepSpeed itself leaves them out.
    skipped: Collection[str] = ()
    if stage in (1, 2) or (stage == 0 and hasattr(optimizer, "fp32_groups")):
        weights = engine.module.named_parameters(remove_duplicate=False)
        skipped = {name for name, one in weights if one.requires_grad}
    capturing = _CapturingEngine(copy, skipped)
    own = engine.checkpoint_engine
    engine.checkpoint_engine = capturing
    # A script that consolidates weights, which model.safetensors makes needless; it would be written at once.
    engine._copy_recovery_script = lambda save_path: None
    try:
        engine.save_checkpoint(_NOWHERE, tag=_TAG, save_latest=False)
    finally:
        engine.checkpoint_engine = own
        del engine._copy_recovery_script
    return capturing.files, capturing.error


@torch.no_grad()
def restore(engine: Any, saved: SavedState, *, leave_out: Collection[str] = ()) -> None:
    """As `Engine.restore`, of a DeepSpeedEngine without gradients, without the keys `leave_out` of the optimizer's
    state."""
    masters = own_masters(engine)
    with saved.errors():
        known = {name: size for row in saved.rows for name, size in row}
        own = {name: getattr(one, "ds_numel", one.numel()) for name, one in engine.module.named_parameters()}
        if other := sorted(name for name, size in own.items() if known.get(name, size) != size):
            raise ResumeRefusedError(
                f"Parameter {other[0]} has {known[other[0]]} elements in the checkpoint and {own[other[0]]} in the"
                f" network ({len(other)} parameters differ in size).",
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
        for master in masters:
            _fill_master(master, engine.optimizer, saved.holders, saved.masters(0)[:1], leave_out)
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


def _fill_master(
    master: Master,
    optimizer: Any,
    holders: Holders,
    anywhere: Sequence[Master],
    leave_out: Collection[str] = (),
) -> None:
    """Fill a master and its optimizer state; state that the sources lack is removed.

    Args:
        anywhere: a source for a share that is all padding: it has numbers such as the step, the same everywhere.
    """
    transfers = [transfer for extent in master.extents for transfer in _transfers(extent, holders)]
    sources = [source for source, _, _ in transfers] or anywhere
    some = {key: value for source in sources for key, value in source.state.items()}
    some |= shared_numbers(source.state for source in sources)
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
    for source, there, here in transfers:
        _flat(master.weights)[here] = _flat(source.weights)[there]
        for key in keys:
            if is_sharded(key, some[key]):
                # A parameter that no loss depended on has no state without ZeRO.
                value = source.state.get(key)
                _flat(state[key])[here] = 0 if value is None else _flat(value)[there]


def _flat(tensor: Tensor) -> Tensor:
    return tensor.detach().view(-1)


def _transfers(extent: Extent, holders: Holders) -> Iterator[tuple[Master, slice, slice]]:
    """The sources of an extent's elements, each with the range of elements there and in the own master."""
    stop = extent.start + extent.size
    for found, source in holders(extent.name, extent.start, stop):
        start = max(extent.start, found.start)
        size = min(stop, found.start + found.size) - start
        there, here = found.offset + start - found.start, extent.offset + start - extent.start
        yield source, slice(there, there + size), slice(here, here + size)


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


@torch.no_grad()
def gather(engine: Any, *, to_all: bool, with_state: bool) -> WholeState:
    """As `Engine.gather`, of a DeepSpeedEngine."""
    masters = own_masters(engine)
    keys = [WEIGHTS]
    if with_state:
        # The tensors with one element per weight have the same names on all ranks.
        states = [item for master in masters for item in master.state.items()]
        keys += sorted({key for key, value in states if is_sharded(key, value)})
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
    """As `Engine.fill`, of a DeepSpeedEngine without gradients."""
    wholes = {
        name: Master(
            values[WEIGHTS],
            {key: value for key, value in values.items() if key != WEIGHTS},
            (Extent(name, 0, 0, values[WEIGHTS].numel()),),
        )
        for name, values in whole.items()
    }
    anywhere = [*wholes.values()][:1]
    for master in own_masters(engine):
        _fill_master(
            master,
            engine.optimizer,
            lambda name, start, stop: [(wholes[name].extents[0], wholes[name])],
            anywhere,
        )
    publish_masters(engine)


def _gathered(
    engine: Any, masters: list[Master], name: str, key: str, size: int, *, to_all: bool
) -> Tensor | None:
    """One tensor of a parameter, flat and in host memory; None on ranks that do not get it."""
    device = engine.device
    whole = torch.zeros(size, dtype=torch.float32, device=device)
    for master in masters:
        values = master.weights if key == WEIGHTS else master.state.get(key)
        for extent in master.extents:
            if extent.name == name and values is not None:
                share = values.detach().view(-1).narrow(0, extent.offset, extent.size)
                whole.narrow(0, extent.start, extent.size).copy_(share)
    if engine.zero_optimization_stage() and dist.get_world_size() > 1:
        # Each element is on one rank, and zeros are on the others. Added as integers, its bits stay the same.
        bits = whole.view(torch.int32)
        dist.all_reduce(bits) if to_all else dist.reduce(bits, 0)
    return whole.cpu() if to_all or dist.get_rank() == 0 else None
