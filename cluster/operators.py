"""Operators that are compiled on the machine that uses them: their directory, and a lock for compilation."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from cluster.artefacts.manifest import hash_json
from cluster.artefacts.private import lock, private_cache
from cluster.artefacts.storage import storage_errors

DIRECTORY_VARIABLE = "TORCH_EXTENSIONS_DIR"
"""torch compiles under this directory."""
WITH_COMPILER = "install g++ (apt-get install g++ ninja-build)"
"""What to do where there is no compiler."""
_LOCK_NAME = "cloze.lock"


def operator_directory() -> Path:
    """Directory of this environment's operators: `TORCH_EXTENSIONS_DIR`, or a private one under ~/.cache.

    Compiled code fits one processor, one environment and one version of torch and DeepSpeed. With a directory
    for each, a home that several machines share holds the right code for all of them. Where the home cannot be
    written to, as in many containers, a private temporary directory is used.
    """
    if chosen := os.environ.get(DIRECTORY_VARIABLE):
        return Path(chosen)
    key = hash_json([sys.prefix, _version("torch"), _version("deepspeed"), _processor()])
    return private_cache() / "ops" / key[:12]


def has_compiler() -> bool:
    """Whether operators can be compiled here: a C++ compiler, and ninja, which is found beside this Python too."""
    _prefer_own_ninja()
    compiler = os.environ.get("CXX", "c++")
    return (shutil.which(compiler) or shutil.which("g++")) is not None and shutil.which("ninja") is not None


@contextmanager
def compile_lock() -> Iterator[None]:
    """Let one process of a machine compile or load operators while the others wait.

    torch marks a compilation by a file named `lock`. A killed process leaves it behind, and all others then wait
    without end. The holder of our lock, which the kernel frees when its process dies, knows that no compilation is
    under way and removes such a file.
    """
    root = operator_directory()
    with storage_errors(root):
        root.mkdir(parents=True, exist_ok=True)
    os.environ[DIRECTORY_VARIABLE] = str(root)
    _prefer_own_ninja()
    with (root / _LOCK_NAME).open("w") as held:
        if lock(held.fileno()):
            for stale in root.glob("*/lock"):
                stale.unlink(missing_ok=True)
        yield


def _prefer_own_ninja() -> None:
    """Put this environment's programs first in PATH: two versions of ninja take each other's work for outdated."""
    own = str(Path(sys.executable).parent)
    path = os.environ.get("PATH", "")
    if path.split(os.pathsep)[0] != own:
        os.environ["PATH"] = own + os.pathsep + path


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _processor() -> str:
    """The processor's feature flags, as Linux lists them; empty on other systems."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")
