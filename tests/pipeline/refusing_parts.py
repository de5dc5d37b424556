"""Trains a run in a group of one rank, some of whose parts fail to close: `RUN MODULE:CLASS ...`.

Prints how the run ended, as JSON: the class of the error, its message and its notes.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path

import orjson


def main() -> None:
    """Train the run named on the command line; the named classes close as always, and then raise."""
    import torch.distributed as dist

    from cluster.group import Rank
    from pipeline.pretrain.step import run_rank

    run, *parts = sys.argv[1:]
    for part in parts:
        _refuse(part)
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        run_rank(Path(run), Rank(rank=0, world_size=1, local_rank=0, num_threads=1))
        told: dict[str, object] = {"error": None}
    except Exception as error:
        notes = getattr(error, "__notes__", [])
        told = {"error": type(error).__name__, "message": str(error), "notes": notes}
    print("END", orjson.dumps(told).decode(), flush=True)


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
