"""Processes of the fork server report how they ended, whenever they are signalled."""

import os
import signal
import time

import psutil
import pytest

from tests.pipeline.process_group import forked


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
