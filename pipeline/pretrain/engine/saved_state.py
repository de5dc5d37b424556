"""DeepSpeed's files of a checkpoint, read as what they hold: stretches of parameters and of their optimizer state.

DeepSpeed itself loads a checkpoint only into the ZeRO stage and number of workers that wrote it; its universal
checkpoints are a second copy on disk, know no optimizer but Adam in stage 3, and give all groups the settings of the
first. Here files are mapped into memory, and everyone takes the stretches that it needs, whoever wrote them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cluster.errors import CorruptCheckpointError
from pipeline.pretrain.engine.shards import Piece, Sizes, pieces_of

_SCALING = ("cur_scale", "cur_iter", "last_overflow_iter")


@dataclass(frozen=True, slots=True)
class SavedMaster:
    """A master of a rank that saved: float32 weights and their state."""

    weights: Tensor
    """Flat; without the padding at its end."""
    state: Mapping[str, Any]
    """By key: a tensor of as many elements (or more: padding), or a number that is the same for all elements."""


class SavedState:
    """The state in a directory that DeepSpeed wrote to."""

    def __init__(self, directory: Path) -> None:
        """
        Args:
            directory: with `*_model_states.pt`, and for ZeRO `*_optim_states.pt` of every rank.
        """
        self._directory = directory
        self._ranks: dict[int, list[SavedMaster]] = {}
        self._files: dict[int, dict[str, Any]] = {}

    @cached_property
    def model(self) -> dict[str, Any]:
        """What the first rank wrote about the run and, below ZeRO stage 3, the network's weights."""
        return self._open("*mp_rank_00_model_states.pt")

    @property
    def stage(self) -> int:
        """ZeRO stage."""
        return self.model["ds_config"]["zero_optimization"]["stage"]

    @property
    def world_size(self) -> int:
        """Ranks that hold different parts; 1 in stage 0, where all hold the same."""
        return self.model["dp_world_size"] if self.stage else 1

    @cached_property
    def rows(self) -> list[Sizes]:
        """The parameters of each master, in order."""
        if self.stage:
            return [
                [(name, shape.numel()) for name, shape in shapes.items()]
                for shapes in self.model["param_shapes"]
            ]
        sizes = [group["sizes"] for group in self._plain_optimizer["param_groups"]]
        if "fp32_groups_flat" in self.model["optimizer"]:
            return sizes
        return [[size] for group in sizes for size in group]

    def holders(self, name: str, start: int, stop: int) -> Iterator[tuple[Piece, SavedMaster]]:
        """Everyone who holds some of a parameter's elements from `start` to `stop`; no other files are opened."""
        for piece, rank, number in self._places.get(name, ()):
            if piece.start < stop and start < piece.start + piece.size:
                yield piece, self.masters(rank)[number]

    def masters(self, rank: int) -> list[SavedMaster]:
        """The masters of a rank."""
        if rank not in self._ranks:
            self._ranks[rank] = list(self._read(rank))
        return self._ranks[rank]

    @cached_property
    def loss_scaling(self) -> Any:
        """DeepSpeed's loss scaler (ZeRO), or its fields (stage 0); empty without scaling."""
        if self.stage:
            return self._optimizer(0)["loss_scaler"]
        return {name: value for name, value in self.model["optimizer"].items() if name in _SCALING}

    @cached_property
    def _places(self) -> dict[str, list[tuple[Piece, int, int]]]:
        """By parameter: its pieces, with the rank and the number of the master that has each."""
        places: dict[str, list[tuple[Piece, int, int]]] = {}
        for rank in range(self.world_size):
            for number, row in enumerate(self.rows):
                for piece in pieces_of(row, self.stage, self.world_size, rank):
                    places.setdefault(piece.name, []).append((piece, rank, number))
        return places

    def _read(self, rank: int) -> Iterator[SavedMaster]:
        state = self._states(rank)
        for number, tensor in enumerate(self._weights(rank)):
            yield SavedMaster(tensor.view(-1), state.get(number, {}))

    def _weights(self, rank: int) -> list[Tensor]:
        if self.stage:
            return self._optimizer(rank)[
                "fp32_flat_groups" if self.stage == 3 else "single_partition_of_fp32_groups"
            ]
        optimizer = self.model["optimizer"]
        if "fp32_groups_flat" in optimizer:
            return optimizer["fp32_groups_flat"]
        if "fp32_groups" in optimizer:
            return [tensor for group in optimizer["fp32_groups"] for tensor in group]
        return [self.model["module"][name] for ((name, _),) in self.rows]

    def _states(self, rank: int) -> dict[int, dict[str, Any]]:
        """By number of the master, its optimizer state; empty before the first update."""
        if not self.stage:
            return self._plain_optimizer["state"]
        key = "optimizer_state_dict" if self.stage == 3 else "base_optimizer_state"
        return self._optimizer(rank)[key]["state"]

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
        # Its own pickles, whose bytes the manifest vouches for; mapped, because most of it belongs to other ranks.
        return torch.load(found[0], map_location="cpu", mmap=True, weights_only=False)
