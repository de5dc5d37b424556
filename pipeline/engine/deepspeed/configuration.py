"""DeepSpeed's configuration for an engine's settings, and what DeepSpeed needs of this machine and process."""

from __future__ import annotations

import sys
import warnings
from importlib.metadata import version
from typing import Any

import torch
from packaging.specifiers import SpecifierSet
from torch import nn

from cluster.artefacts.errors import ConfigError
from pipeline.engine.device import trains_on_cuda
from pipeline.engine.interface import SUB_GROUP_ELEMENTS, EngineSettings

SUPPORTED = SpecifierSet(">=0.19.8,<0.20")
"""As in `pyproject.toml`. A test looks up every private name that is used in the installed version."""
_NEVER = 10**9
"""Steps between DeepSpeed's own progress lines."""


def require_supported_version() -> None:
    """Raise ConfigError unless the installed DeepSpeed is of a supported version; nothing is imported."""
    found = version("deepspeed")
    if not SUPPORTED.contains(found, prereleases=True):
        raise ConfigError(
            f"DeepSpeed {found} is installed, and training needs {SUPPORTED}: it uses parts of DeepSpeed that other"
            " versions may not have.",
            next_step=f'{sys.executable} -m pip install "deepspeed{SUPPORTED}"',
        )


def require_hardware(settings: EngineSettings) -> None:
    """Raise ConfigError unless this machine can compute in the run's precision."""
    if settings.precision == "fp16" and not trains_on_cuda():
        raise ConfigError(
            "precision fp16 needs CUDA: CPUs have no kernels for it.",
            next_step="set precision=bf16, which needs no scaling of losses, or precision=fp32",
        )


def deepspeed_config(settings: EngineSettings, world_size: int) -> dict[str, Any]:
    """DeepSpeed's configuration in concrete numbers; nothing is left to `auto`."""
    zero, precision, clip = settings.zero, settings.precision, settings.optimizer.clip or 0.0
    offload: dict[str, Any] = {}
    for key, place in (
        ("offload_optimizer", zero.offload_optimizer),
        ("offload_param", zero.offload_parameters),
    ):
        if place is not None:
            offload[key] = {"device": place.device, "pin_memory": trains_on_cuda()}
    gradients: dict[str, Any] = {}
    if precision != "fp32" or zero.reduce_dtype != "fp32":
        gradients["communication_data_type"] = zero.reduce_dtype
    if precision != "fp32" and zero.stage:
        # A bf16 sum stays as it is when less than 1/512 of it is added.
        gradients["data_types"] = {"grad_accum_dtype": "fp32"}
    return {
        # The caller says which micro-batch is the last of an update; batches of different steps differ in size.
        "train_batch_size": settings.micro_batch_size * world_size,
        "train_micro_batch_size_per_gpu": settings.micro_batch_size,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": 0.0 if zero.stage == 0 and precision == "fp32" else clip,
        **gradients,
        # Read in stage 1 only: without it, all gradients would also be kept in bf16.
        "bf16": {"enabled": True, "immediate_grad_update": True}
        if precision == "bf16"
        else {"enabled": False},
        "fp16": {"enabled": precision == "fp16", "loss_scale": 0, "initial_scale_power": 16},
        "zero_optimization": {
            "stage": zero.stage,
            "contiguous_gradients": True,
            # Overlapped reduction adds gradients in order of arrival; exactness comes first.
            "overlap_comm": False,
            "reduce_bucket_size": zero.reduce_bucket_elements,
            "allgather_bucket_size": zero.reduce_bucket_elements,
            # Small parameters are kept whole only for speed; with few workers sharding them costs nothing.
            "stage3_param_persistence_threshold": 0,
            "sub_group_size": SUB_GROUP_ELEMENTS,
            **offload,
        },
        # The optimizer is torch's in every stage, offloaded or not.
        "zero_force_ds_cpu_optimizer": False,
        "zero_allow_untested_optimizer": True,
        "steps_per_print": _NEVER,
        "wall_clock_breakdown": False,
    }


def initialize(
    model: nn.Module, settings: EngineSettings, world_size: int, optimizer: torch.optim.Optimizer
) -> Any:
    """Call `deepspeed.initialize` for this rank; returns the DeepSpeedEngine.

    Raises:
        ConfigError: DeepSpeed refuses the settings, or the installed version is not supported.
    """
    require_supported_version()
    import deepspeed

    # Shared-memory collectives serve inference only; where there is a compiler, they would be compiled at the start.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    # DeepSpeed calls deprecated functions thousands of times.
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.distributed")
    try:
        engine, *_ = deepspeed.initialize(
            model=model,
            optimizer=optimizer,
            config=deepspeed_config(settings, world_size),
            dist_init_required=False,
        )
    except (AssertionError, NotImplementedError, ValueError) as error:
        raise ConfigError(
            f"DeepSpeed refuses the settings: {type(error).__name__}: {error}",
            next_step="change `zero`, `precision` or `optimizer`",
        ) from error
    return engine
