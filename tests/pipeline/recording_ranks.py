"""A rank that trains as any other does, and writes down every argument that its network was trained on.

`-m tests.pipeline.recording_ranks RUN_DIRECTORY` in a group, with the folder to write to in RECORDED_BATCHES.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from pipeline.objectives import OBJECTIVES
from pipeline.pretrain.__main__ import main
from pipeline.run.directory import RunDirectory

VARIABLE = "RECORDED_BATCHES"


def recorded_path(directory: Path, rank: int, number: int) -> Path:
    """Where the arguments of a rank's `number`-th forward pass of training lie."""
    return directory / f"rank-{rank}-{number:05d}.npz"


def _recording(build: Callable[..., nn.Module], directory: Path, rank: int) -> Callable[..., nn.Module]:
    numbers = count()

    def record(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        if module.training:
            arrays = {name: value.cpu().numpy() for name, value in kwargs.items()}
            np.savez(recorded_path(directory, rank, next(numbers)), **arrays)

    def build_recorded(*arguments: Any) -> nn.Module:
        model = build(*arguments)
        model.register_forward_pre_hook(record, with_kwargs=True)
        return model

    return build_recorded


if __name__ == "__main__":
    objective = OBJECTIVES[RunDirectory(Path(sys.argv[1])).config().objective.kind]
    place = Path(os.environ[VARIABLE])
    objective.build_model = _recording(objective.build_model, place, int(os.environ["RANK"]))  # pyright: ignore
    main()
