"""Torch without its compiler, which takes longer to import than all the rest of torch."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any

_COMPILER = "torch._dynamo"


class _Absent(ModuleType):
    """Stands for the compiler in processes that compile nothing. Torch marks functions as not to be compiled when they
    are first called, such as an optimizer's `state_dict`, and where its optimizers begin; Accelerate asks whether a
    network is compiled. Each would import the compiler. Whatever else is wanted of it, the compiler itself answers."""

    eval_frame = SimpleNamespace(OptimizedModule=type("OptimizedModule", (), {}))
    """A class without instances."""

    @staticmethod
    def disable(function: Callable[..., Any] | None = None, *_: Any, **__: Any) -> Callable[..., Any]:
        """The mark, which says nothing where nothing is compiled; or a decorator that sets it."""
        return (lambda marked: marked) if function is None else function

    @staticmethod
    def graph_break() -> None:
        """Where the compiler would stop."""

    def __getattr__(self, name: str) -> Any:
        # `inspect` asks all modules for their `__file__`, also in the middle of an import. Only the import of a
        # submodule needs an attribute with such a name.
        if name.startswith("__") and name != "__path__":
            raise AttributeError(name)
        _give_way()
        return getattr(import_module(_COMPILER), name)


@contextmanager
def without_compiler(unless: bool = False) -> Iterator[None]:
    """While it lasts, torch's compiler is imported only if something is compiled. For processes that compile nothing
    afterwards either: functions that were called keep no mark.

    Args:
        unless: whether something will be compiled; then this does nothing.
    """
    if not unless and _COMPILER not in sys.modules:
        sys.modules[_COMPILER] = _Absent(_COMPILER)
    try:
        yield
    finally:
        _give_way()


def _give_way() -> None:
    if isinstance(sys.modules.get(_COMPILER), _Absent):
        del sys.modules[_COMPILER]
