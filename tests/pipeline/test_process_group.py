"""Processes of the fork server report how they ended, whenever they are signalled; ranks wait for one of them."""

import os
import signal
import time
from datetime import timedelta

import psutil
import pytest
import torch.distributed as dist

from cluster.collectives import while_others_wait
from tests.pipeline.process_group import forked, on_ranks


@pytest.mark.parametrize("is_signalled_first", [True, False])
def test_a_process_that_is_signalled_when_it_ends_reports_its_exit_code(is_signalled_first: bool):
    process = forked(["-c", "import time; time.sleep(1); raise SystemExit(7)"], os.environ, (0, 1, 2))
    forked_one = psutil.Process(process.pid)
    server = forked_one.parent()
    assert server is not None
    # While it is stopped, the end of the process and the signal both come.
    server.suspend()
    try:
        if is_signalled_first:
            process.send_signal(signal.SIGTERM)
        while forked_one.status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.01)
        if not is_signalled_first:
            process.send_signal(signal.SIGTERM)
    finally:
        server.resume()
    process.kill()
    assert process.wait() == 7


def test_ranks_outlast_their_groups_timeout_while_one_verifies_a_checkpoint() -> None:
    assert on_ranks(verify_on_the_first, workers=2) == ["verified", None]


def verify_on_the_first() -> str | None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=2))
    return while_others_wait(work if dist.get_rank() == 0 else None)


def work() -> str:
    time.sleep(3)
    return "verified"
