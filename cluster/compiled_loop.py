"""Loops that numba compiles to machine code when they are first called.

A process that only checks settings, or lists runs, reads the modules with such loops too, and numba takes longer to
import than all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, update_wrapper
from typing import Any


def compiled_loop(function: Callable[..., Any]) -> LateCompiled:
    """Decorator: numba compiles the function at its first call and caches the machine code; it runs without the GIL."""
    return LateCompiled(function, _njit)


class LateCompiled:
    """A function that numba makes something of as soon as it is called, or as another compiled loop calls it."""

    def __init__(self, function: Callable[..., Any], compiler: Callable[[Callable[..., Any]], Any]):
        """
        Args:
            function: the function in Python, which `py_func` is.
            compiler: makes of the function what numba's compiled loops can call; it imports numba.
        """
        self.py_func = function
        self._compiler = compiler
        update_wrapper(self, function)

    def __call__(self, *arguments: Any) -> Any:
        """The result of the compiled function."""
        return self.compiled(*arguments)

    @cached_property
    def compiled(self) -> Any:
        """What numba has made of the function."""
        return self._compiler(self.py_func)

    def __reduce__(self) -> str:
        return self.py_func.__qualname__

    @property
    def _numba_type_(self) -> Any:
        """By which numba knows what a global name in another compiled loop stands for."""
        from numba.core.registry import cpu_target

        compiled = self.compiled
        context: Any = cpu_target.typing_context
        context.refresh()
        return context.resolve_value_type(compiled)


def _njit(function: Callable[..., Any]) -> Any:
    from numba import njit

    return njit(cache=True, nogil=True)(function)
