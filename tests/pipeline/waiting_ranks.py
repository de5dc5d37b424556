"""Two ranks of a group with a timeout of 2 seconds, of which rank 0 works for 5: run by test_waiting.py."""

from __future__ import annotations

import time
from datetime import timedelta

import torch.distributed as dist

from cluster.collectives import while_others_wait


def work() -> str:
    """Take longer than the group's timeout."""
    time.sleep(5)
    return "verified"


dist.init_process_group("gloo", timeout=timedelta(seconds=2))
found = while_others_wait(work if dist.get_rank() == 0 else None)
assert found == ("verified" if dist.get_rank() == 0 else None)
