"""Surroundings of tests in every folder: an environment without settings, and files with a flipped bit."""

from __future__ import annotations

import os
from pathlib import Path


def plain_environment() -> dict[str, str]:
    """The environment of this process, without a cluster, a tracking store or settings of cloze."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("CLOZE_", "MLFLOW_", "RAY_"))
    }


def flip_bit(path: Path) -> bytes:
    """Change one bit in the middle of a file, as a bad disk does, and return what the file held."""
    good = path.read_bytes()
    data = bytearray(good)
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    return good
