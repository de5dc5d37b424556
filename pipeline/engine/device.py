"""How a process computes: on a GPU or not, decided in one place, so that DeepSpeed, torch and our own tensors agree;
deterministically or not; attention kernel, recomputation of activations, compilation."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils import deterministic

from cluster.artefacts.errors import ConfigError
from models.config import NetworkConfig
from models.transformer import Choice, Transformer, choose_backend, use_backend
from pipeline.run.config import PretrainConfig

_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
_WORKSPACES = (":4096:8", ":16:8")
"""Workspaces that make cuBLAS deterministic (cuBLAS documentation, "Results reproducibility")."""
_REFUSAL = "does not have a deterministic implementation"
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
"""By precision, the type of weights and activations."""


def trains_on_cuda() -> bool:
    """Whether this process has a GPU and may train on it.

    Workers without GPUs of their own (`cluster.gpus_per_worker: 0`) still see the GPUs of their machine. They have
    DS_ACCELERATOR=cpu in their environment, which keeps DeepSpeed off the GPUs too.
    """
    return torch.cuda.is_available() and os.environ.get("DS_ACCELERATOR") != "cpu"


@contextmanager
def deterministic_algorithms(wanted: bool) -> Iterator[None]:
    """Compute with deterministic algorithms inside the block, which begins before the first product on a GPU.

    Raises:
        ConfigError: an operation of the network has no deterministic implementation on this device.
    """
    if not wanted:
        yield
        return
    if os.environ.get(_WORKSPACE) not in _WORKSPACES:
        os.environ[_WORKSPACE] = _WORKSPACES[0]
    settings: Any = deterministic
    algorithms = torch.are_deterministic_algorithms_enabled()
    filled = settings.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    # It would write over all new memory, to find programs that read it unwritten.
    settings.fill_uninitialized_memory = False
    try:
        yield
    except RuntimeError as error:
        if _REFUSAL not in str(error):
            raise
        raise ConfigError(
            f"This network cannot be computed deterministically on this device: {str(error).splitlines()[0]}",
            next_step="set compute.deterministic=false, or compute.attention_backend=sdpa if attention is named",
        ) from error
    finally:
        torch.use_deterministic_algorithms(algorithms)
        settings.fill_uninitialized_memory = filled


def choose_attention(
    shape: NetworkConfig,
    config: PretrainConfig,
    device: torch.device,
    capability: tuple[int, int] | None = None,
) -> Choice:
    """Choose the attention kernel of a run's network on a device, which need not be there.

    Args:
        capability: compute capability of a GPU; None takes the one of this machine, if there is one.

    Raises:
        ConfigError: the configured kernel cannot work on this device.
    """
    backend, dtype = config.compute.attention_backend, DTYPES[config.precision]
    try:
        return choose_backend(shape, backend, device=device, dtype=dtype, capability=capability)
    except ValueError as error:
        raise ConfigError(str(error), next_step="set compute.attention_backend=auto") from None


def prepare_network(
    model: nn.Module, shape: NetworkConfig, config: PretrainConfig, device: torch.device
) -> Choice:
    """Set the attention kernel, recomputation and compilation of a network. Returns the kernel chosen, and why.

    Raises:
        ConfigError: the configured kernel cannot work on this device, or there is no compiler to compile with.
    """
    compute = config.compute
    if compute.compile and not any(map(shutil.which, ("c++", "g++", "clang++"))):
        raise ConfigError(
            "compute.compile needs a C++ compiler, and this machine has none.",
            next_step="install g++ (apt-get install g++), or set compute.compile=false",
        )
    choice = choose_attention(shape, config, device)
    use_backend(model, choice)
    for module in model.modules():
        if isinstance(module, Transformer):
            module.gradient_checkpointing = compute.gradient_checkpointing
    if compute.compile:
        model.compile()
    return choice
