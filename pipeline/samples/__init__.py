"""From token stores to micro-batches: order, packing, mixing and loading as pure functions of one integer.

numba compiles a function again when its own file has changed, but not when a function that it calls in another file
has: it would continue to call the old one. So its cache of machine code is keyed by the contents of all files with
compiled loops.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterable
from pathlib import Path

from cluster.artefacts.private import private_cache

SOURCES = tuple(Path(__file__).parents[1] / name for name in ("samples", "objectives"))
"""Directories that hold compiled loops."""


def kernel_cache(sources: Iterable[Path]) -> Path:
    """The directory for the present contents of the Python files in `sources`; no other user can write to it."""
    return private_cache() / "kernels" / digest_of(sources)


def digest_of(sources: Iterable[Path]) -> str:
    """Hash of the contents of Python files; a directory counts with all Python files in it."""
    contents = hashlib.blake2b(digest_size=8)
    for source in sources:
        for file in sorted(source.rglob("*.py")) if source.is_dir() else [source]:
            contents.update(file.relative_to(source).as_posix().encode() + b"\0" + file.read_bytes())
    return contents.hexdigest()


def use_kernel_cache() -> None:
    """Make numba use this directory, unless `NUMBA_CACHE_DIR` names another."""
    if "NUMBA_CACHE_DIR" in os.environ:
        return
    os.environ["NUMBA_CACHE_DIR"] = str(kernel_cache(SOURCES))
    if "numba" in sys.modules:  # imported before, it has read the environment already
        sys.modules["numba"].config.CACHE_DIR = os.environ["NUMBA_CACHE_DIR"]


use_kernel_cache()
