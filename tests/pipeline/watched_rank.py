"""`one_rank` under watch: `python -m tests.pipeline.watched_rank PORT DIRECTORY RUN ...`.

The stack of every attempt of this process to connect to PORT, a tracking server's, is written to DIRECTORY/stacks. The
run ends without waiting for its log to be sent as soon as the file DIRECTORY/connected is there, which says that the
process that sends the log has found the server.
"""

from __future__ import annotations

import sys
import time
import traceback
from pathlib import Path
from typing import Any

from pipeline.run.log.sender import Sender
from tests.pipeline import one_rank


def watch(port: int, report: Path) -> None:
    """Report every connection to `port` from now on, whichever library makes it."""

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "socket.connect" and isinstance(arguments[1], tuple) and arguments[1][1] == port:
            with report.open("a") as stream:
                stream.write("".join(traceback.format_stack()))

    sys.addaudithook(hook)


def hurry(connected: Path) -> None:
    """Let the end of a run not wait for its log to be sent: with a server that never answers, it takes the 30 seconds
    that it may."""
    close = Sender.close

    def close_at_once(self: Sender, timeout_s: float = 30.0) -> str:
        while not connected.exists():
            time.sleep(0.05)
        return close(self, 0.2)

    Sender.close = close_at_once


if __name__ == "__main__":
    port, directory = int(sys.argv.pop(1)), Path(sys.argv.pop(1))
    watch(port, directory / "stacks")
    hurry(directory / "connected")
    # The test compares process ids. A program of the fork server has another id than the process that connects.
    sys.executable = str(Path(sys.prefix, "bin", "python"))
    one_rank.main()
