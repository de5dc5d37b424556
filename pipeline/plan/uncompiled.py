"""Operations without numbers, without torch's compiler: its import takes longer than all the rest of a plan."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any

_COMPILER = "torch._dynamo"


class _Absent(ModuleType):
    """Stands for the compiler. On `meta`, torch runs operations in Python, and marks each as one that is not to be
    compiled, for which alone it imports its compiler. Whatever else is wanted of it, the compiler itself answers."""

    @staticmethod
    def disable(function: Callable[..., Any], *_: Any, **__: Any) -> Callable[..., Any]:
        """The mark, which says nothing where nothing is compiled."""
        return function

    def __getattr__(self, name: str) -> Any:
        _give_way()
        return getattr(import_module(_COMPILER), name)


@contextmanager
def without_compiler() -> Iterator[None]:
    """While it lasts, torch's compiler is imported only if something is compiled. For commands that compile nothing
    afterwards: operations that were run keep no mark."""
    if _COMPILER not in sys.modules:
        sys.modules[_COMPILER] = _Absent(_COMPILER)
    try:
        yield
    finally:
        _give_way()


def _give_way() -> None:
    if isinstance(sys.modules.get(_COMPILER), _Absent):
        del sys.modules[_COMPILER]
