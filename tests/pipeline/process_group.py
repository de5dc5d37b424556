"""What `torchrun` does for tests: the processes of a group, which find each other and end together.

They are forked from a server that has prepared itself once, as `before_forks` does.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import shutil
import signal
import sys
import tempfile
import time
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing import connection
from pathlib import Path
from typing import Any

PATIENCE_S = 600
"""Seconds that a test waits for what must come: a fresh machine compiles before its first step, a busy one is slow."""
_FORKED = multiprocessing.get_context("forkserver")
_FORKED.set_forkserver_preload(["tests.pipeline.before_forks"])


class Group:
    """`python -m MODULE ARGUMENTS` in that many processes."""

    def __init__(
        self,
        module: str,
        arguments: Sequence[Any],
        workers: int,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start them.

        Args:
            environment: what is added to that of this process.
        """
        from torch.distributed import TCPStore

        # Whoever picks a free port beforehand may find it taken.
        self._store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        directory = tempfile.mkdtemp()
        weakref.finalize(self, shutil.rmtree, directory, ignore_errors=True)
        self._output = Path(directory) / "output"
        self._output.touch()
        shared = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "DS_ACCELERATOR": "cpu",
            "WORLD_SIZE": str(workers),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self._store.port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            **(environment or {}),
        }
        words = [str(argument) for argument in arguments]
        self._processes = [
            _FORKED.Process(
                target=_run,
                args=(module, words, shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)}, self._output),
            )
            for rank in range(workers)
        ]
        for process in self._processes:
            process.start()

    @property
    def pids(self) -> list[int]:
        """Process ids, by rank."""
        return [process.pid for process in self._processes if process.pid is not None]

    @property
    def output(self) -> str:
        """What all of them printed so far."""
        return self._output.read_text(errors="replace")

    def poll(self) -> int | None:
        """The exit code of the first that failed; 0 when all have come to their end, None while they run."""
        codes = [process.exitcode for process in self._processes]
        return next((code for code in codes if code), None if None in codes else 0)

    def wait(self) -> int:
        """Wait for the end; where one fails, the others are killed. Returns what `poll` does."""
        deadline = time.monotonic() + PATIENCE_S
        while (code := self.poll()) is None:
            running = [process.sentinel for process in self._processes if process.exitcode is None]
            # The last one may have ended since it was asked.
            if running and not connection.wait(running, deadline - time.monotonic()):
                self.kill()
                raise TimeoutError(self.output[-3000:])
        self.kill()
        return code

    def kill(self) -> None:
        """SIGKILL for all."""
        for process in self._processes:
            process.kill()
            process.join()


def run_group(
    module: str, arguments: Sequence[Any], workers: int, environment: Mapping[str, str] | None = None
) -> str:
    """Run to the end, which must be a good one; returns what was printed."""
    group = Group(module, arguments, workers, environment)
    assert group.wait() == 0, group.output[-3000:]
    return group.output


def _run(module: str, arguments: list[str], environment: Mapping[str, str], output: Path) -> None:
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(environment)
    descriptor = os.open(output, os.O_WRONLY | os.O_APPEND)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
        os.dup2(descriptor, stream.fileno())
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
