"""The versions of DeepSpeed whose internals are known to be the ones used here."""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, version

from packaging.specifiers import SpecifierSet

from cluster.artefacts.errors import ConfigError

SUPPORTED = SpecifierSet(">=0.19.8,<0.20")
"""As in `pyproject.toml`. A test looks up every private name that is used in the installed version."""


def require_supported_version() -> None:
    """Raise ConfigError unless the installed DeepSpeed is of a supported version; nothing is imported."""
    try:
        found = version("deepspeed")
    except PackageNotFoundError:
        found = None
    if found is None or not SUPPORTED.contains(found, prereleases=True):
        raise ConfigError(
            f"DeepSpeed {found} is installed, and training needs {SUPPORTED}: it uses parts of DeepSpeed that other"
            " versions may not have."
            if found
            else f"DeepSpeed is not installed; training needs {SUPPORTED}.",
            next_step=f'{sys.executable} -m pip install "deepspeed{SUPPORTED}"',
        )
