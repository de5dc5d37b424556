"""Many short runs in one process, a group of one rank: `python -m tests.pipeline.one_rank RUN ...`.

A process takes many times as long to start as such a run takes. Prints how each run ended. The parts of training that
REFUSING_PARTS names, as MODULE:CLASS, close as always, and then raise.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import orjson

from cluster.artefacts import errors as typed_errors
from pipeline.run.directory import RunDirectory
from tests.pipeline.process_group import run_group

REFUSING = "REFUSING_PARTS"


def train_alone(runs: Sequence[RunDirectory]) -> list[str]:
    """Train every run as far as it goes, one after the other; returns how each ended, if only by typed errors."""
    found = endings(run_group("tests.pipeline.one_rank", [run.path for run in runs], 1))
    assert [ending for ending in found if ending != "ended" and not hasattr(typed_errors, ending)] == []
    return found


def endings(output: str) -> list[str]:
    """Return how each run ended: `ended`, or the class of the error."""
    return [found["error"] or "ended" for found in errors(output)]


def errors(output: str) -> list[dict[str, Any]]:
    """Parse the error of each run, its message and its notes from what the process printed; None without an error."""
    return [orjson.loads(found) for found in re.findall(r"\bEND (\{.*\})$", output, re.MULTILINE)]


def main() -> None:
    """Train the runs named on the command line."""
    import torch.distributed as dist

    from cluster.group import Rank
    from pipeline.pretrain.launch import run_rank

    for part in os.environ.get(REFUSING, "").split():
        _refuse(part)
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    rank = Rank(rank=0, world_size=1, local_rank=0, num_threads=1)
    for path in sys.argv[1:]:
        found: dict[str, Any] = {"error": None}
        try:
            run_rank(Path(path), rank)
        except Exception as error:
            notes = getattr(error, "__notes__", [])
            found = {"error": type(error).__name__, "message": str(error), "notes": notes}
        print("END", orjson.dumps(found).decode(), flush=True)


def _refuse(part: str) -> None:
    module, name = part.split(":")
    owner = getattr(import_module(module), name)
    close = owner.close

    def close_and_raise(self: object, *arguments: object) -> None:
        close(self, *arguments)
        raise ValueError(f"{name} does not close")

    owner.close = close_and_raise


if __name__ == "__main__":
    main()
