"""Loops are compiled late: nothing is imported before the first call, and the machine code is found again."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np

from pipeline.samples.noise.kernels import fold, integer, mix

ROOT = Path(__file__).parents[2]
LOOPS = """
from cluster.compiled_loop import compiled_loop

@compiled_loop
def double(value):
    return value * 2

@compiled_loop
def quadruple(value):
    return double(double(value))
"""
PROGRAM = """
import sys
from loops import double, quadruple
before = "numba" in sys.modules
print(before, quadruple(3), len(quadruple.compiled.stats.cache_hits))
"""


def test_numba_is_imported_at_the_first_call_and_its_cache_is_used(tmp_path: Path):
    (tmp_path / "loops.py").write_text(LOOPS)
    environment = {
        "PYTHONPATH": f"{tmp_path}:{ROOT}",
        "NUMBA_CACHE_DIR": str(tmp_path / "cache"),
        "PATH": "/usr/bin",
    }
    told = [
        subprocess.run(
            [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True
        ).stdout.split()
        for _ in range(2)
    ]
    assert told == [["False", "12", "0"], ["False", "12", "1"]]


def test_compiled_loop_equals_its_function():
    values = [np.uint64(value) for value in (0, 1, 2**63, 2**64 - 1)]
    with np.errstate(over="ignore"):
        assert [mix(value) for value in values] == [mix.py_func(value) for value in values]
        assert fold(values[1], values[2]) == fold.py_func(values[1], values[2])


def test_processes_get_it_by_its_name():
    assert pickle.loads(pickle.dumps(integer)) is integer
    assert integer.__doc__ == integer.py_func.__doc__
    assert not hasattr(integer, "anything else")
