"""Small networks of every kind, each made once, and the command line."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from pipeline.ask.probing.features import load_features
from pipeline.ask.prompting.networks import load_language_model
from tests.pipeline.ask import networks

NOWHERE = Path("no-runs")
Make = Callable[[str], Any]


@pytest.fixture(scope="session")
def directory_of(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """From the name of a function of `networks` to the directory that it made."""
    return cache(lambda kind: getattr(networks, kind)(tmp_path_factory.mktemp(kind) / "model"))


@pytest.fixture(scope="session")
def writer(directory_of: Make) -> Make:
    """From such a name to the network that predicts tokens."""
    return cache(lambda kind: load_language_model(str(directory_of(kind)), NOWHERE))


@pytest.fixture(scope="session")
def reader(directory_of: Make) -> Make:
    """From such a name to the network whose hidden states are read."""
    return cache(lambda kind: load_features(str(directory_of(kind)), NOWHERE))
