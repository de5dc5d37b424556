"""The processes of a fine-tuning run: one, or as many as `accelerate launch` or `torchrun` started.

On CPUs that is `torchrun`: `accelerate launch` needs MPI there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list

from cluster.artefacts.errors import ConfigError
from pipeline.finetune.config import FinetuneConfig
from pipeline.finetune.settings import Precision

Result = TypeVar("Result")

MIXED_PRECISION: dict[Precision, str] = {"fp32": "no", "bf16": "bf16", "fp16": "fp16"}
"""Accelerate's names of the precisions."""


def make_accelerator(config: FinetuneConfig) -> Accelerator:
    """Join the other processes, choose the device and the number of threads."""
    if config.num_threads is not None:
        torch.set_num_threads(config.num_threads)
    # Without `cpu` on machines without GPUs, Accelerate takes each of several processes for the only one.
    cpu = not torch.accelerator.is_available()
    if cpu and config.precision == "fp16":
        raise ConfigError(
            "precision: fp16 needs a GPU, and this machine has none.",
            next_step="set precision=fp32, or precision=bf16 on processors that compute in it",
        )
    return Accelerator(cpu=cpu, mixed_precision=MIXED_PRECISION[config.precision])


def on_first(accelerator: Accelerator, action: Callable[[], Result]) -> Result:
    """Call `action` in the first process, and return its (picklable) result in all of them.

    An error is raised in every process, so that no process waits for one that failed.
    """
    found: list[Any] = [None, None]
    if accelerator.is_main_process:
        try:
            found[0] = action()
        except Exception as error:
            found[1] = error
    if accelerator.num_processes > 1:
        broadcast_object_list(found)
    if found[1] is not None:
        raise found[1]
    return found[0]
