"""What py-cpuinfo knows of this machine's processor, asked for once."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_FILE = "processor.json"


@contextmanager
def known_processor(directory: Path) -> Iterator[None]:
    """Let DeepSpeed's operators, made inside, learn about the processor from a file, which is written if need be.

    Each of them asks py-cpuinfo three times, which takes seconds each time, while the other workers of the machine wait
    for the operator's lock.

    Args:
        directory: belongs to this processor and this environment alone, as the operators' directory does.
    """
    import cpuinfo

    original = cpuinfo.get_cpu_info

    def remembered() -> dict[str, Any]:
        path = directory / _FILE
        try:
            return json.loads(path.read_text())
        except (OSError, ValueError):
            found = original()
        unfinished = path.with_suffix(f".{os.getpid()}")
        unfinished.write_text(json.dumps(found))
        unfinished.replace(path)
        return found

    cpuinfo.get_cpu_info = remembered
    try:
        yield
    finally:
        cpuinfo.get_cpu_info = original
