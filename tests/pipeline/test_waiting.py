"""Work of one rank may take longer than collective operations wait. Run as a program, this file is one of the ranks."""

from __future__ import annotations

import time
from datetime import timedelta

import torch.distributed as dist

from cluster.collectives import while_others_wait
from tests.pipeline.process_group import run_group


def test_ranks_outlast_their_groups_timeout_while_one_verifies_a_checkpoint() -> None:
    run_group("tests.pipeline.test_waiting", [], 2)


def work() -> str:
    time.sleep(3)
    return "verified"


if __name__ == "__main__":
    dist.init_process_group("gloo", timeout=timedelta(seconds=2))
    is_first = dist.get_rank() == 0
    assert while_others_wait(work if is_first else None) == ("verified" if is_first else None)
