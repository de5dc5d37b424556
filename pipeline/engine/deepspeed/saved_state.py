"""Read the parameters and optimizer state in the files that DeepSpeed wrote to a checkpoint.

DeepSpeed itself loads a checkpoint only into the ZeRO stage and number of ranks that wrote it; its universal
checkpoints are a second copy on disk, support only Adam in stage 3, and give all groups the settings of the first. Here
files are memory-mapped, and each rank copies the ranges that it needs from the files of all ranks that saved.

The files are pickles, and a pickle may name any function for its reader to call. Only tensors, plain values and the few
classes of DeepSpeed that its state contains are unpickled; a file that names anything else is refused.
"""

from __future__ import annotations

import pickle
import re
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cluster.artefacts.errors import ClozeError, CorruptCheckpointError
from pipeline.engine.deepspeed.masters import Extent, Master, Sizes, extents_of, is_sharded

_SCALING = ("cur_scale", "cur_iter", "last_overflow_iter")
_NAMED = re.compile(r"(?:GLOBAL|class|function|instantiate|call) (?P<name>[A-Za-z_][\w.]*\.\w+)")
"""Finds the refused name in torch's message."""
_UNREADABLE = (
    pickle.UnpicklingError,
    RuntimeError,
    OSError,
    EOFError,
    LookupError,
    TypeError,
    ValueError,
    AttributeError,
)
"""Errors that torch raises for files that it did not write."""


class SavedState:
    """The state of all ranks in a directory that DeepSpeed wrote."""

    def __init__(self, directory: Path) -> None:
        """
        Args:
            directory: holds `*_model_states.pt`, and for ZeRO `*_optim_states.pt` of every rank.
        """
        self._directory = directory
        self._ranks: dict[int, list[Master]] = {}
        self._files: dict[int, dict[str, Any]] = {}

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Raise CorruptCheckpointError when the block fails because files lack entries or have others."""
        try:
            yield
        except ClozeError:
            raise
        except (LookupError, TypeError, AttributeError, ValueError) as error:
            raise _unusable(self._directory, f"{type(error).__name__}: {error}") from error

    @cached_property
    def model(self) -> dict[str, Any]:
        """Rank 0's file about the run, with the network's weights below ZeRO stage 3."""
        return self._open("*mp_rank_00_model_states.pt")

    @property
    def stage(self) -> int:
        """ZeRO stage."""
        return self.model["ds_config"]["zero_optimization"]["stage"]

    @cached_property
    def world_size(self) -> int:
        """Number of ranks that saved; 1 in stage 0, where all ranks hold the same."""
        if not self.stage:
            return 1
        stated, files = self.model["dp_world_size"], len(list(self._directory.glob("*_optim_states.pt")))
        if stated != files:
            raise _unusable(self._directory, f"the state of {stated} ranks is in {files} files")
        return files

    @cached_property
    def rows(self) -> list[Sizes]:
        """Names and sizes of the parameters in each master, in order."""
        if self.stage:
            return [
                [(name, shape.numel()) for name, shape in shapes.items()]
                for shapes in self.model["param_shapes"]
            ]
        return [[size] for group in self._plain_optimizer["param_groups"] for size in group["sizes"]]

    def holders(self, name: str, start: int, stop: int) -> Iterator[tuple[Extent, Master]]:
        """The masters that hold elements `start` to `stop` of a parameter; only their files are opened."""
        for extent, rank, number in self._places.get(name, ()):
            if extent.start < stop and start < extent.start + extent.size:
                yield extent, self.masters(rank)[number]

    def masters(self, rank: int) -> list[Master]:
        """The masters of a rank."""
        if rank not in self._ranks:
            self._ranks[rank] = list(self._read(rank))
        return self._ranks[rank]

    @cached_property
    def loss_scaling(self) -> dict[str, float]:
        """The fields of DeepSpeed's loss scaler (ZeRO) or of the optimizer (stage 0); empty without loss scaling."""
        if self.stage:
            scaler = self._optimizer(0).get("loss_scaler")
            fields = {} if scaler is None else vars(scaler)
        else:
            fields = {name: value for name, value in self.model["optimizer"].items() if name in _SCALING}
        return {name: value for name, value in fields.items() if isinstance(value, int | float)}

    @cached_property
    def _places(self) -> dict[str, list[tuple[Extent, int, int]]]:
        """Extents of each parameter, each with the rank and the index of its master."""
        places: dict[str, list[tuple[Extent, int, int]]] = {}
        for rank in range(self.world_size):
            for number, row in enumerate(self.rows):
                for extent in extents_of(row, self.stage, self.world_size, rank):
                    places.setdefault(extent.name, []).append((extent, rank, number))
        return places

    def _read(self, rank: int) -> Iterator[Master]:
        """The masters of a rank in order; their state is empty before the first update."""
        if self.stage:
            in_stage_3, optimizer = self.stage == 3, self._optimizer(rank)
            weights = optimizer["fp32_flat_groups" if in_stage_3 else "single_partition_of_fp32_groups"]
            states = optimizer["optimizer_state_dict" if in_stage_3 else "base_optimizer_state"]["state"]
        else:
            optimizer, states = self.model["optimizer"], self._plain_optimizer["state"]
            if "fp32_groups" in optimizer:
                weights = [tensor for group in optimizer["fp32_groups"] for tensor in group]
            else:
                weights = [self.model["module"][name] for ((name, _),) in self.rows]
        for number, row in enumerate(self.rows):
            own = extents_of(row, self.stage, self.world_size, rank)
            size = max((extent.offset + extent.size for extent in own), default=0)
            master = Master(weights[number].view(-1), states.get(number, {}), own)
            for key, value in {"its weights": master.weights, **master.state}.items():
                sharded = is_sharded(key, value)
                if not (value.numel() >= size if sharded else isinstance(value, Tensor | int | float)):
                    raise _unusable(
                        self._directory, f"master {number} of rank {rank} needs {size} numbers of {key}"
                    )
            yield master

    @property
    def _plain_optimizer(self) -> dict[str, Any]:
        """Without ZeRO: the `state_dict` of torch."""
        optimizer = self.model["optimizer"]
        return optimizer.get("optimizer_state_dict", optimizer)

    def _optimizer(self, rank: int) -> dict[str, Any]:
        if rank not in self._files:
            self._files[rank] = self._open(f"*zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
        return self._files[rank]["optimizer_state_dict"]

    def _open(self, pattern: str) -> dict[str, Any]:
        found = sorted(self._directory.glob(pattern))
        if not found:
            raise CorruptCheckpointError(
                f"{self._directory} has no file {pattern}.",
                next_step="resume from an older checkpoint",
            )
        if not (isinstance(contents := _read_tensors(found[0]), dict)):
            raise _unusable(found[0], f"it holds a {type(contents).__name__}")
        return contents


def _read_tensors(file: Path) -> Any:
    """Read a file of `torch.save`; tensors are memory-mapped, because a rank needs few of them."""
    try:
        with zipfile.ZipFile(file) as archive:
            # torch never compresses, and a few compressed bytes could expand to fill the memory.
            if any(entry.file_size != entry.compress_size for entry in archive.infolist()):
                raise _unusable(file, "it is compressed")
        with torch.serialization.safe_globals(_harmless_classes()):
            return torch.load(file, map_location="cpu", mmap=True, weights_only=True)
    except ClozeError:
        raise
    except (*_UNREADABLE, AttributeError, zipfile.BadZipFile) as error:
        named = _NAMED.search(str(error))
        reason = (
            f"it names {named['name']}, and to make that could run code"
            if named
            else str(error).split("\n")[0]
        )
        raise _unusable(file, reason[:300]) from None


def _harmless_classes() -> list[Any]:
    """The classes of DeepSpeed in its files, for all stages, precisions and optimizers. Making one runs no code."""
    from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
    from deepspeed.runtime.zero.config import ZeroStageEnum
    from deepspeed.utils.tensor_fragment import fragment_address

    # Some versions of Python (3.11.2 is one) write a member of an enumeration as getattr(CLASS, NAME).
    members = [(_stage_by_name, f"{module}.getattr") for module in ("builtins", "__builtin__")]
    return [LossScaler, DynamicLossScaler, ZeroStageEnum, fragment_address, *members]


def _stage_by_name(owner: Any, name: Any) -> Any:
    """Take the place of `getattr` in a file, which could reach anything: a stage of ZeRO, and nothing else."""
    from deepspeed.runtime.zero.config import ZeroStageEnum

    if owner is not ZeroStageEnum or name not in ZeroStageEnum.__members__:
        raise pickle.UnpicklingError(f"it asks for an attribute {name!r} that is no stage of ZeRO")
    return ZeroStageEnum[name]


def _unusable(place: Path, reason: str) -> CorruptCheckpointError:
    return CorruptCheckpointError(
        f"{place} is not what DeepSpeed writes: {reason}.",
        kept="everything; nothing of it was loaded",
        next_step="find out who wrote it (SECURITY.md); to continue from the previous checkpoint, move this one away"
        " and resume",
    )
