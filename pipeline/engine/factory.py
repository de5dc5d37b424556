"""Where a training engine comes from, and the versions of DeepSpeed whose internals the engine knows."""

from __future__ import annotations

import sys
from importlib.metadata import version

from packaging.specifiers import SpecifierSet
from torch import nn

from cluster.artefacts.errors import ConfigError
from cluster.group import Rank
from pipeline.engine.interface import EngineConfig, TrainingEngine

SUPPORTED = SpecifierSet(">=0.19.8,<0.20")
"""As in `pyproject.toml`. A test looks up every private name that is used in the installed version."""


def open_engine(model: nn.Module, config: EngineConfig, rank: Rank) -> TrainingEngine:
    """Give a rank's network to DeepSpeed. All ranks must call it.

    Args:
        model: with its initial weights, the same on every rank.

    Raises:
        ConfigError: the precision or the optimizer cannot work on this machine, or its DeepSpeed is of a version that
            was not tested.
    """
    require_supported_version()
    from pipeline.engine.deepspeed.engine import ZeroEngine

    return ZeroEngine(model, config, rank)


def require_supported_version() -> None:
    """Raise ConfigError unless the installed DeepSpeed is of a supported version; nothing is imported."""
    found = version("deepspeed")
    if not SUPPORTED.contains(found, prereleases=True):
        raise ConfigError(
            f"DeepSpeed {found} is installed, and training needs {SUPPORTED}: it uses parts of DeepSpeed that other"
            " versions may not have.",
            next_step=f'{sys.executable} -m pip install "deepspeed{SUPPORTED}"',
        )
