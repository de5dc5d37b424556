"""Many short runs in one process, a group of one rank: `python -m tests.pipeline.one_rank RUN ...`.

Prints for every run how it ended: `ended`, or the class of the error. A process takes many times as long to start as
such a run takes.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from pipeline.run.directory import RunDirectory
from tests.pipeline.process_group import run_group


def train_alone(runs: Sequence[RunDirectory]) -> list[str]:
    """Train every run as far as it goes, one after the other; returns how each ended."""
    return endings(run_group("tests.pipeline.one_rank", [run.path for run in runs], 1))


def endings(output: str) -> list[str]:
    """How each run ended, by what the process printed."""
    return re.findall(r"\bEND (\w+)$", output, re.MULTILINE)


def main() -> None:
    """Train the runs named on the command line."""
    import torch.distributed as dist

    from cluster.artefacts.errors import ClozeError
    from cluster.group import Rank
    from pipeline.pretrain.step import run_rank

    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    rank = Rank(rank=0, world_size=1, local_rank=0, num_threads=1)
    for path in sys.argv[1:]:
        try:
            run_rank(Path(path), rank)
            print("END ended", flush=True)
        except ClozeError as error:
            print("END", type(error).__name__, flush=True)


if __name__ == "__main__":
    main()
