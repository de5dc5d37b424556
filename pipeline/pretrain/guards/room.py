"""Networks far larger than this machine are refused before anything is started."""

from __future__ import annotations

import os

from cluster.artefacts.errors import OutOfMemoryError
from cluster.memory import memory
from models.config import NetworkConfig, TransformerConfig
from pipeline.engine.gpus import GPUS
from pipeline.run.config import PretrainConfig

_GIB = 1 << 30
_LEAST_BYTES = 8
"""Of a parameter, with its gradient: float32 both, or in half precision with a float32 master. Optimizer state and
activations come on top."""


def least_bytes(parameters: int, config: PretrainConfig) -> int:
    """Memory without which a run cannot train, over all workers: one copy of everything, as ZeRO stage 3 spreads it."""
    copies = 1 if config.zero.stage == 3 else config.cluster.workers
    item = 4 if config.precision == "fp32" else 2
    return parameters * (_LEAST_BYTES + item * (copies - 1))


def require_room(config: PretrainConfig, shape: NetworkConfig) -> None:
    """Refuse a run that this machine's memory cannot hold, by a lower bound that takes no time.

    A cluster at an address may have any size, and is not looked at.

    Raises:
        OutOfMemoryError: says what is needed and what is there.
    """
    if config.cluster.address or os.environ.get("RAY_ADDRESS"):
        return
    parameters = shape.least_parameters if isinstance(shape, TransformerConfig) else 0
    needed, there = least_bytes(parameters, config), memory().total
    # Of the largest card there is: to ask for the cards takes seconds.
    there += (
        config.cluster.workers
        * config.cluster.gpus_per_worker
        * max(gpu.memory_bytes for gpu in GPUS.values())
    )
    if needed > there:
        raise OutOfMemoryError(
            f"{config.name} has more than {parameters / 1e9:,.1f} billion parameters: its weights and gradients alone"
            f" take {needed / _GIB:,.0f} GiB, and this machine has {there / _GIB:,.0f} GiB at most.",
            kept="everything; nothing was started",
            next_step="make the network smaller (model.hidden_size, model.num_layers), or train on a cluster:"
            " cluster.address=... (`cloze plan` says what it must have)",
        )
