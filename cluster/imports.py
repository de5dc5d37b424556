"""Imports of large libraries without Python's collector of garbage.

Torch, MLflow and Ray make millions of objects when they are imported, which all stay. The collector would search them
again and again meanwhile, for a fifth of the time, and later for as long as a step takes.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Nothing is collected inside the block, and what is there at its end counts as permanent."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if enabled:
            gc.enable()
