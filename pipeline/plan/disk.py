"""Disk space of a run: its checkpoints."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from pipeline.plan.memory import Sharding
from pipeline.run.config import PretrainConfig
from pipeline.run.token_plan import UNBOUNDED_STEPS


@dataclass(frozen=True, slots=True)
class Disk:
    """Bytes of checkpoints."""

    checkpoint: int
    """One of them: DeepSpeed's files of all ranks, and the weights, and their average, as safetensors."""
    kept: int | None
    """Number that lies there at the end; None where the run's length is not known and some are kept for good."""
    total: int | None
    """All that are kept, and one that is being written."""
    free: int | None
    """Free where they will lie; None for other places than local directories."""


def disk_of(config: PretrainConfig, sharding: Sharding) -> Disk:
    """The disk that a run needs."""
    whole = 4 * sharding.network.num_parameters
    ranks = 1 if config.zero.stage == 0 else sharding.world_size
    checkpoint = ranks * sharding.saved_bytes + whole + (whole if config.ema else 0)
    kept = kept_checkpoints(config)
    total = None if kept is None else (kept + 1) * checkpoint
    return Disk(checkpoint, kept, total, _free(config))


def kept_checkpoints(config: PretrainConfig) -> int | None:
    """Checkpoints at the end of the run: the newest, the best, and those that are kept for good."""
    settings, steps = config.checkpoint, config.num_steps
    if steps >= UNBOUNDED_STEPS:
        return None if settings.keep_every_steps else settings.keep_last + 1
    saved = -(-steps // settings.every_steps)
    for_good = steps // settings.keep_every_steps if settings.keep_every_steps else 0
    return min(saved, settings.keep_last + 1 + for_good)


def _free(config: PretrainConfig) -> int | None:
    place = config.checkpoint.directory or str(config.runs_dir)
    if "://" in place:
        return None
    path = Path(place).absolute()
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free
