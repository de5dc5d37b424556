"""How a network is computed on a device: attention kernel, recomputation of activations, compilation."""

from __future__ import annotations

import shutil

import torch
from torch import nn

from cluster.artefacts.errors import ConfigError
from models.config import NetworkConfig
from models.transformer import Choice, Transformer, choose_backend, use_backend
from pipeline.run.config import PretrainConfig

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


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
    try:
        choice = choose_backend(
            shape, compute.attention_backend, device=device, dtype=_DTYPES[config.precision]
        )
    except ValueError as error:
        raise ConfigError(str(error), next_step="set compute.attention_backend=auto") from None
    use_backend(model, choice)
    for module in model.modules():
        if isinstance(module, Transformer):
            module.gradient_checkpointing = compute.gradient_checkpointing
    if compute.compile:
        model.compile()
    return choice
