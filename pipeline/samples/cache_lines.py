"""Asking the processor for memory that a compiled loop reads soon.

Rows and documents are scattered over more memory than its caches hold. It reads many places side by side, but only
those that it knows of, and it does not know of those behind a branch that waits for a read itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cluster.compiled_loop import LateCompiled

CACHE_LINE_BYTES = 64


def _prefetch(_context: Any, array: Any, index: Any) -> Any:
    from llvmlite import ir
    from numba import types
    from numba.core import cgutils

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        pointer, number = ir.PointerType(ir.IntType(8)), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer, number, number, number])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        address = builder.bitcast(builder.gep(data, [arguments[1]]), pointer)
        # To be read, not written; to be kept in every cache; data, not code.
        builder.call(function, [address, number(0), number(3), number(1)])
        return context.get_dummy_value()

    return types.void(array, types.intp), generate


def _intrinsic(function: Callable[..., Any]) -> Any:
    from numba.extending import intrinsic

    return intrinsic(function)


prefetch = LateCompiled(_prefetch, _intrinsic)
"""In compiled loops: have the cache line of an element of a C-contiguous array, flattened, read meanwhile.

The number of the element may be any: the processor passes over addresses that cannot be read."""
