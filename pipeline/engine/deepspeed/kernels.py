"""DeepSpeed's optimizer kernels by name, and which implementation of an optimizer this machine gets."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import torch

from cluster.artefacts.errors import ConfigError
from cluster.operators import WITH_COMPILER, compile_lock, has_compiler, operator_directory
from pipeline.engine.deepspeed.process_effects import remembered_processor
from pipeline.engine.device import trains_on_cuda
from pipeline.engine.interface import EngineConfig
from pipeline.optimizers.base import Group, Machine

_UNREACHED_STEP = 2**31
_KERNELS: Mapping[str, tuple[str, Mapping[str, bool]]] = {
    "FusedAdam": ("adam", {"adam_w_mode": True}),
    "DeepSpeedCPUAdam": ("adam", {"adamw_mode": True}),
    "FusedLion": ("lion", {}),
    "DeepSpeedCPULion": ("lion", {}),
    "FusedLamb": ("lamb", {}),
    "DeepSpeedCPUAdagrad": ("adagrad", {}),
}
"""The package of `deepspeed.ops` that has each class, and arguments that it always gets."""


def optimizer_name(config: EngineConfig) -> str:
    """Class that updates the weights on this machine. A checkpoint of one class fits no other."""
    on_cuda = trains_on_cuda() and config.zero.offload_optimizer is None
    machine: Machine = "cuda" if on_cuda else "compiler" if has_compiler() else "plain"
    return config.optimizer.implementation(machine)


def make_kernel(name: str, groups: list[Group], **arguments: Any) -> torch.optim.Optimizer:
    """One of DeepSpeed's optimizers. Its operator is compiled, if need be, by one process of a machine at a time.

    Raises:
        ConfigError: the operator cannot be compiled or loaded here, which no new start changes.
    """
    package, more = _KERNELS[name]
    with compile_lock(), remembered_processor(operator_directory()):
        try:
            return getattr(import_module(f"deepspeed.ops.{package}"), name)(groups, **arguments, **more)
        except (torch.OutOfMemoryError, torch.AcceleratorError):
            raise
        except Exception as error:
            # Of a missing toolkit torch says OSError too, without a number.
            if isinstance(error, OSError) and error.errno not in (None, errno.ENOENT):
                raise
            toolkit = f", and the CUDA toolkit {torch.version.cuda} in CUDA_HOME" if trains_on_cuda() else ""
            raise ConfigError(
                f"DeepSpeed's {name} cannot be compiled or loaded on this machine: {type(error).__name__}:"
                f" {str(error)[-2000:]}",
                next_step=f"{WITH_COMPILER}{toolkit}; `cloze doctor` tells what is there",
            ) from error


def forget_beta_powers(optimizer: torch.optim.Optimizer) -> None:
    """Make the next update's bias correction a function of its step number alone. To be called before it.

    DeepSpeed's CPU Adam keeps beta**step as a running float32 product inside its C++ object; no checkpoint
    holds it, and after a resumption it is computed by `pow`, which differs in the last bits. An update of a
    dummy under a step number that no run reaches makes it compute `pow` every time.
    """
    update = getattr(getattr(optimizer, "ds_opt_adam", None), "adam_update", None)
    if update is None:
        return
    group = optimizer.param_groups[0]
    beta1, beta2 = group["betas"]
    dummies = [torch.zeros(1) for _ in range(4)]
    update(
        optimizer.opt_id,  # pyright: ignore[reportAttributeAccessIssue]
        _UNREACHED_STEP,
        0.0,
        beta1,
        beta2,
        group["eps"],
        0.0,
        True,
        *dummies,
    )
