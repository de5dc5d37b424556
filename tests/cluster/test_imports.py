"""Large imports are not searched for garbage, and everything afterwards is."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from pathlib import Path

import pytest

from cluster.imports import uncollected

ROOT = Path(__file__).parents[2]
COUNTED = """
import gc
searched = []
gc.callbacks.append(lambda phase, info: searched.append(info["generation"]))
from cluster.imports import uncollected
with uncollected():
    before = len(searched)
    import torch
    assert len(searched) == before
assert gc.isenabled() and gc.get_freeze_count() > 100_000
"""


class Knot:
    def __init__(self) -> None:
        self.own = self


def test_nothing_is_collected_while_a_library_is_imported():
    subprocess.run([sys.executable, "-c", COUNTED], check=True, cwd=ROOT)


def test_what_is_made_afterwards_is_collected():
    with pytest.raises(ZeroDivisionError), uncollected(), uncollected():
        raise ZeroDivisionError
    knot = weakref.ref(Knot())
    gc.collect()
    assert gc.isenabled()
    assert knot() is None


def test_collector_that_was_off_stays_off():
    gc.disable()
    try:
        with uncollected():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
