"""DeepSpeed without what it brings along and nobody here uses: importing that takes longer than DeepSpeed itself."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def left_out(module: str) -> Iterator[None]:
    """For the time of the block a module that nobody imported before seems not to be installed; for imports that allow
    for that."""
    if module in sys.modules:
        yield
        return
    sys.modules[module] = None  # pyright: ignore[reportArgumentType]
    try:
        yield
    finally:
        sys.modules.pop(module, None)


def do_without_compiler() -> None:
    """Let optimizers be made without torch's compiler, which is loaded where a network is to be compiled.

    torch would load it to have it leave `add_param_group` alone, and DeepSpeed to compile Muon, an optimizer that
    nobody can choose here: it only asks of others whether they are that.
    """
    from deepspeed.runtime import compiler

    function = getattr(torch.optim.Optimizer.add_param_group, "__wrapped__", None)
    if function is not None and not hasattr(function, "__dynamo_disable"):
        # Where `torch._compile` keeps what the compiler made of it.
        function.__dynamo_disable = function
    compile_function = compiler.compile
    compiler.compile = lambda *_, **__: lambda function: function
    try:
        import deepspeed.runtime.zero.muon.muon_optimizer  # noqa: F401
    finally:
        compiler.compile = compile_function
