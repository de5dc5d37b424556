"""Where a training engine comes from."""

from __future__ import annotations

from torch import nn

from cluster.train_group import Rank
from pipeline.engine.interface import TrainingEngine
from pipeline.runs.config import PretrainConfig


def open_engine(model: nn.Module, config: PretrainConfig, rank: Rank) -> TrainingEngine:
    """Give a rank's network to DeepSpeed. All ranks must call it.

    Args:
        model: with its initial weights, the same on every rank.

    Raises:
        ConfigError: the precision or the optimizer cannot work on this machine, or its DeepSpeed is of a version that
            was not tested.
    """
    from pipeline.engine.deepspeed.version import require_supported_version

    require_supported_version()
    from pipeline.engine.deepspeed.engine import ZeroEngine

    return ZeroEngine(model, config, rank)
