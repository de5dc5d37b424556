"""The code, the packages and the machine that a run is started on."""

from __future__ import annotations

import getpass
import os
import platform
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import orjson

from cluster.artefacts.credentials import has_credentials, without_credentials
from cluster.artefacts.manifest import created_by
from pipeline.run.directory import RunDirectory
from pipeline.run.events import Event

_PACKAGES = ("torch", "deepspeed", "ray", "mlflow", "numpy", "numba", "tokenizers", "triton", "flash-attn")
_STEERING_VARIABLES = ("CUDA_", "NCCL_", "OMP_", "PYTORCH_", "TORCH_", "DS_")
"""Prefixes of environment variables that change results or speed; none of them holds a secret."""


def source_tags() -> dict[str, str]:
    """The code that made a run: cloze's version and commit (`+dirty` when it was changed), under MLflow's names too.

    The commit is cloze's own, not the user's working directory's: with the resolved configuration and the fingerprints
    of the data, it determines the run.
    """
    made = created_by()
    tags = {
        "mlflow.source.name": "cloze",
        "mlflow.source.type": "LOCAL",
        "cloze.version": made.version,
        "cloze.host": made.host,
    }
    with suppress(OSError, KeyError):  # In a container, the user may have no name.
        tags["mlflow.user"] = getpass.getuser()
    if made.commit:
        tags |= {"mlflow.source.git.commit": made.commit, "cloze.commit": made.commit}
    return tags


def changed_packages(run: RunDirectory) -> list[str]:
    """In words, the packages that have another version here than in the last attempt at a run: results may round
    otherwise from here on."""
    started = run.events(Event.STARTED)
    if not started:
        return []
    versions = [
        {"python": own["python"], **own["packages"]} for own in (started[-1]["environment"], environment())
    ]
    return [
        f"{name} was {versions[0].get(name, 'not installed')}, is {versions[1].get(name, 'not installed')}"
        for name in sorted(versions[0].keys() | versions[1].keys())
        if versions[0].get(name) != versions[1].get(name)
    ]


def environment() -> dict[str, Any]:
    """Versions of the packages that compute a run, the machine, and the environment variables that steer them."""
    versions = {}
    for package in _PACKAGES:
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "host": platform.node(),
        "packages": versions,
        "variables": {
            name: value for name, value in sorted(os.environ.items()) if name.startswith(_STEERING_VARIABLES)
        },
    }


def without_secrets(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Settings as a tracking store may have them: all of its users see them."""
    if has_credentials(text := orjson.dumps(dict(config), default=str).decode()):
        return orjson.loads(without_credentials(text))
    return config
