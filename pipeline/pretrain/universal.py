"""Continuing on another number of workers: DeepSpeed's universal checkpoints, made when they are needed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch.distributed as dist

from cluster.errors import ResumeRefusedError
from pipeline.pretrain.checkpoint import DEEPSPEED_DIRECTORY


def universal_info() -> dict[str, Any]:
    """Client state that lets a checkpoint be converted later; this network has no tensor-parallel patterns."""
    from deepspeed.checkpoint.constants import (
        UNIVERSAL_CHECKPOINT_INFO,
        UNIVERSAL_CHECKPOINT_VERSION_KEY,
        UNIVERSAL_CHECKPOINT_VERSION_VALUE,
    )

    return {UNIVERSAL_CHECKPOINT_INFO: {UNIVERSAL_CHECKPOINT_VERSION_KEY: UNIVERSAL_CHECKPOINT_VERSION_VALUE}}


def scratch_path(checkpoint: Path) -> Path:
    """Where the converted form of a checkpoint is put for the time of loading."""
    return checkpoint.with_name(f".{checkpoint.name}.universal")


def convert_on_rank_zero(checkpoint: Path) -> Path:
    """Convert a committed checkpoint; rank 0 works, all wait. Returns the directory to load from.

    Raises:
        ResumeRefusedError: the conversion failed, on every rank; the checkpoint is untouched.
    """
    target = scratch_path(checkpoint)
    outcome = [""]
    if dist.get_rank() == 0:
        outcome = [_convert(checkpoint / DEEPSPEED_DIRECTORY, target / DEEPSPEED_DIRECTORY)]
    dist.broadcast_object_list(outcome, src=0)
    if outcome[0]:
        raise ResumeRefusedError(
            f"{checkpoint} could not be converted for another number of workers:\n{outcome[0]}",
            kept="the checkpoint, unchanged",
            next_step="resume on as many workers as it was saved by (see its trainer.json)",
        )
    return target


def discard_scratch(checkpoint: Path) -> None:
    """Delete the converted form once every rank has loaded it."""
    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(scratch_path(checkpoint), ignore_errors=True)


def _convert(source: Path, target: Path) -> str:
    """Run DeepSpeed's converter in a process of its own; returns what went wrong, or an empty string."""
    shutil.rmtree(target.parent, ignore_errors=True)
    target.mkdir(parents=True)
    command = [sys.executable, "-m", "deepspeed.checkpoint.ds_to_universal"]
    command += ["--input_folder", str(source), "--output_folder", str(target), "--num_extract_workers", "1"]
    command += ["--num_merge_workers", "1"]
    # The converter must not take itself for a rank of this group.
    hidden = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    return "" if done.returncode == 0 else done.stderr[-2000:]
