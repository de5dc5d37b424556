"""The processes of a fine-tuning run: one, or as many as `accelerate launch` or `torchrun` started."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import Any, TypeVar

import torch
from accelerate import Accelerator
from accelerate.utils import InitProcessGroupKwargs, broadcast_object_list

from cluster.artefacts.errors import ConfigError
from cluster.collectives import GROUP_TIMEOUT_S
from pipeline.tasks.settings import Precision
from pipeline.tune.config import FinetuneConfig

Result = TypeVar("Result")

MIXED_PRECISION: dict[Precision, str] = {"fp32": "no", "bf16": "bf16", "fp16": "fp16"}
"""Accelerate's names of the precisions."""


_SHARDING = "leave the option out, and set zero.stage=2 (or 1, 3) to shard the training among processes"
_LAUNCHER_SETTINGS: Mapping[str, tuple[str, tuple[str, ...], str]] = {
    "ACCELERATE_USE_FSDP": ("--use_fsdp", ("", "false", "no"), _SHARDING),
    "ACCELERATE_USE_DEEPSPEED": ("--use_deepspeed", ("", "false", "no"), _SHARDING),
    "ACCELERATE_USE_MEGATRON_LM": ("--use_megatron_lm", ("", "false", "no"), _SHARDING),
    "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": (
        "--gradient_accumulation_steps",
        ("", "1"),
        "leave it out, and set training.micro_batch_size: batches of training.batch_size are accumulated from it",
    ),
    "ACCELERATE_DYNAMO_BACKEND": (
        "--dynamo_backend",
        ("", "no"),
        "set it to no: networks are not compiled here",
    ),
}
"""By variable of `accelerate launch`: the option, the values that change nothing, and what to do about others."""
_RANK_VARIABLES = ("RANK", "WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")


def check_launch(config: FinetuneConfig, environment: Mapping[str, str]) -> None:
    """Check that a launcher started as many processes as it was asked for, and asks for nothing else than `config`.

    Raises:
        ConfigError: it did not, or does; all differences are named.
    """
    problems = list(_launch_problems(config, environment))
    if problems:
        raise ConfigError(
            "\n".join(found for found, _ in problems), next_step="; ".join(step for _, step in problems)
        )


def _launch_problems(config: FinetuneConfig, environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Each difference, with what to do about it."""
    several = "ACCELERATE_USE_CPU" in environment and "MASTER_ADDR" in environment
    if several and not any(name in environment for name in _RANK_VARIABLES):
        yield (
            "accelerate launch was asked for several processes and started one: with --cpu it starts more by MPI only.",
            "accelerate launch --multi_gpu --num_processes N (which also works on CPUs), or"
            " torchrun --nproc_per_node N; for one process, unset MASTER_ADDR",
        )
    for variable, (option, harmless, next_step) in _LAUNCHER_SETTINGS.items():
        if (value := environment.get(variable, "")).lower() not in harmless:
            yield (
                f"accelerate launch sets {option} ({variable}={value}), which fine-tuning does not use.",
                next_step,
            )
    wanted = environment.get("ACCELERATE_MIXED_PRECISION", "no")
    if wanted not in ("no", MIXED_PRECISION[config.precision]):
        yield (
            f"accelerate launch sets --mixed_precision {wanted}, and the configuration precision: {config.precision}.",
            f"add precision={wanted}, or launch with --mixed_precision {MIXED_PRECISION[config.precision]}",
        )


def make_accelerator(config: FinetuneConfig) -> Accelerator:
    """Join the other processes, choose the device and the number of threads.

    Raises:
        ConfigError: the machine cannot compute in the precision, or as `check_launch`.
    """
    check_launch(config, os.environ)
    if config.num_threads is not None:
        torch.set_num_threads(config.num_threads)
    # Without `cpu` on machines without GPUs, Accelerate takes each of several processes for the only one.
    cpu = not torch.accelerator.is_available()
    if cpu and config.precision == "fp16":
        raise ConfigError(
            "precision: fp16 needs a GPU, and this machine has none.",
            next_step="set precision=fp32, or precision=bf16 on processors that compute in it",
        )
    return Accelerator(
        cpu=cpu,
        mixed_precision=MIXED_PRECISION[config.precision],
        kwargs_handlers=[InitProcessGroupKwargs(timeout=timedelta(seconds=GROUP_TIMEOUT_S))],
    )


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
