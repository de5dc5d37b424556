"""Compiled loops are never older than what they call."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from pipeline.samples import SOURCES, kernel_cache

PROGRAM = "import pipeline.samples, numba; print(numba.config.CACHE_DIR)"


def test_every_change_of_a_source_gives_another_place(tmp_path: Path):
    (tmp_path / "a.py").write_text("one = 1")
    (tmp_path / "b.py").write_text("two = 2")
    places = [kernel_cache([tmp_path])]
    (tmp_path / "b.py").write_text("two = 3")
    places.append(kernel_cache([tmp_path]))
    (tmp_path / "b.py").rename(tmp_path / "c.py")
    places.append(kernel_cache([tmp_path]))
    assert len(set(places)) == 3
    assert kernel_cache([tmp_path]) == places[-1]


def test_numba_uses_it_unless_another_place_is_named(tmp_path: Path):
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}

    def place(**more: str) -> str:
        command = [sys.executable, "-c", PROGRAM]
        done = subprocess.run(
            command, capture_output=True, text=True, check=True, env={**environment, **more}
        )
        return done.stdout.strip()

    assert place(HOME=str(tmp_path)).startswith(f"{tmp_path}/.cache/cloze/kernels/")
    assert place(NUMBA_CACHE_DIR=str(tmp_path)) == str(tmp_path)
    (tmp_path / "file").touch()
    assert place(HOME=str(tmp_path / "file"), TMPDIR=str(tmp_path)).startswith(f"{tmp_path}/cloze-")


def test_kernels_of_objectives_count_too(tmp_path: Path):
    for name in ("samples", "objectives/kernels"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "a.py").write_text("one = 1")
    sources = [tmp_path / "samples", tmp_path / "objectives"]
    before = kernel_cache(sources)
    (tmp_path / "objectives" / "kernels" / "a.py").write_text("one = 2")
    assert kernel_cache(sources) != before
    assert {source.name for source in SOURCES} == {"samples", "objectives"}
