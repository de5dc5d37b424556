"""A rank with a fault in it: `python -m tests.chaos.injected FAULT RUN`, else like `python -m pipeline.pretrain RUN`.

FAULT is JSON. The system calls of Python raise audit events (`open`, `os.rename`, `os.rmdir`) before
they happen; at those of one kind that name a path, the process is killed, an error takes the place of the call, or the
call is slow. Libraries written in other languages are not reached.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Injected:
    """What happens, where."""

    event: str
    """An audit event."""
    path: str
    """Regular expression that is searched in the paths of the call."""
    first: int = 1
    """The first such call that is hit, counted from 1."""
    times: int = 1
    """How many calls are hit from then on."""
    error: int = 0
    """The errno that is raised; 0 raises none."""
    sleep_s: float = 0.0
    """How much longer the call takes."""
    rank: int = 0
    """The rank that is hit; -1 for all."""
    struck: str = ""
    """A file that is created when it happens; one that exists lets nothing happen, so that a fault happens once."""
    clock: str = ""
    """A file with the seconds by which the process's clock is wrong, as long as it exists."""

    def to_argument(self) -> str:
        return json.dumps(asdict(self))


def install(fault: Injected) -> None:
    if fault.clock:
        _set_clock(Path(fault.clock))
    if not fault.event or fault.rank not in (-1, int(os.environ.get("RANK", "0"))):
        return
    wanted, seen = re.compile(fault.path), [0]
    own = threading.local()
    is_spent = bool(fault.struck) and Path(fault.struck).exists()

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event != fault.event or is_spent or getattr(own, "busy", False):
            return
        if not wanted.search(" ".join(map(str, arguments))):
            return
        seen[0] += 1
        if fault.first <= seen[0] < fault.first + fault.times:
            own.busy = True
            try:
                _strike(fault)
            finally:
                own.busy = False

    sys.addaudithook(hook)


def _strike(fault: Injected) -> None:
    if fault.struck:
        Path(fault.struck).touch()
    time.sleep(fault.sleep_s)
    if fault.error:
        raise OSError(fault.error, os.strerror(fault.error))
    if not fault.sleep_s:
        os.kill(os.getpid(), signal.SIGKILL)


def _set_clock(path: Path) -> None:
    seconds, nanoseconds = time.time, time.time_ns

    def wrong_by() -> float:
        try:
            return float(path.read_text())
        except (OSError, ValueError):
            return 0.0

    time.time = lambda: seconds() + wrong_by()
    time.time_ns = lambda: nanoseconds() + int(wrong_by() * 1e9)


def main() -> None:
    from pipeline.pretrain.__main__ import main as train
    from pipeline.samples.index_cache import IndexCache

    # The store is small; its index is cached all the same, so that a fault can hit it.
    defaults = IndexCache.__init__.__kwdefaults__
    assert defaults is not None
    defaults["from_tokens"] = 0
    install(Injected(**json.loads(sys.argv.pop(1))))
    train()


if __name__ == "__main__":
    main()
