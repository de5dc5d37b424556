"""The run that is watched."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.run.directory import RunDirectory
from tests.pipeline.watch.materials import watched_run


@pytest.fixture
def run(tmp_path: Path, store: Path) -> RunDirectory:
    return watched_run(tmp_path, store)
