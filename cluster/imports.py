"""Imports of large libraries, without what makes them slow: Python's collector of garbage, and other libraries that
they import only because these are installed.

Torch, MLflow and Ray make millions of objects when they are imported, which all stay. The collector would search them
again and again meanwhile, for a fifth of the time, and later for as long as a step takes.
"""

from __future__ import annotations

import gc
import sys
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


@contextmanager
def hidden(module: str) -> Iterator[None]:
    """Make `import module` raise ImportError inside the block, unless it is already imported."""
    if module in sys.modules:
        yield
        return
    sys.modules[module] = None  # pyright: ignore[reportArgumentType]
    try:
        yield
    finally:
        sys.modules.pop(module, None)
