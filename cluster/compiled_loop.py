"""The decorator of loops that numba compiles to machine code.

Importing it imports numba, so modules with compiled loops are imported by the verbs that run them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import njit

compiled_loop: Callable[[Callable[..., Any]], Any] = njit(cache=True, nogil=True)
"""Decorator: numba compiles the function at its first call and caches the machine code; it runs without the GIL."""
