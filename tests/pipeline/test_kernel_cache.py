"""Compiled loops are never older than what they call."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from pipeline.samples import SOURCES, kernel_cache

PROGRAM = "import pipeline.samples, numba; print(numba.config.CACHE_DIR)"


def test_every_change_of_a_source_below_any_root_gives_another_place(tmp_path: Path):
    roots = [tmp_path / "samples", tmp_path / "objectives"]
    (tmp_path / "samples").mkdir()
    (tmp_path / "objectives" / "kernels").mkdir(parents=True)
    kernel = tmp_path / "objectives" / "kernels" / "a.py"
    (tmp_path / "samples" / "b.py").write_text("two = 2")
    kernel.write_text("one = 1")
    places = [kernel_cache(roots)]
    kernel.write_text("one = 2")
    places.append(kernel_cache(roots))
    kernel.rename(kernel.with_name("c.py"))
    places.append(kernel_cache(roots))
    assert len(set(places)) == 3
    assert kernel_cache(roots) == places[-1]
    assert {source.name for source in SOURCES} == {"samples", "objectives"}


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
