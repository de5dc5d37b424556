"""Whether a process trains on a GPU: decided in one place, so that DeepSpeed, torch and our own tensors agree."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils import deterministic

from cluster.artefacts.errors import ConfigError


def trains_on_cuda() -> bool:
    """Whether this process has a GPU and may train on it.

    Workers without GPUs of their own (`cluster.gpus_per_worker: 0`) still see the GPUs of their machine. They have
    DS_ACCELERATOR=cpu in their environment, which keeps DeepSpeed off the GPUs too.
    """
    return torch.cuda.is_available() and os.environ.get("DS_ACCELERATOR") != "cpu"


_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
_WORKSPACES = (":4096:8", ":16:8")
"""Workspaces with which cuBLAS is deterministic (cuBLAS documentation, "Results reproducibility")."""
_REFUSAL = "does not have a deterministic implementation"


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
