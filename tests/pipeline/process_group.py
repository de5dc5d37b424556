"""What `torchrun` does for tests: the processes of a group, which find each other and end together.

`on_ranks` calls a function in each. They are forked from a server that has imported everything once, and so is `cloze`
of `forked_environment`.
"""

from __future__ import annotations

import functools
import os
import pickle
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import connection
from pathlib import Path
from typing import Any, TypeVar

from tests.pipeline.fork_client import Forked

PATIENCE_S = 600
"""Seconds that a test waits for what must come: a fresh machine compiles before its first step, a busy one is slow."""
ONE_THREAD = {"OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}
Found = TypeVar("Found")
_started: list[subprocess.Popen[bytes]] = []
PROGRAM = """#!{real} -SE
import sys
sys.path.append({directory!r})
from fork_client import main
main({server!r}, {real!r}, [*{first!r}, *sys.argv[1:]])
"""
"""A program whose work a forked process does. It begins without site-packages, in hundredths of a second."""


@functools.cache
def forked_environment() -> Path:
    """A virtual environment like that of this process, whose `python` and `cloze` are forked from the server. What they
    start by `sys.executable`, such as workers of Ray, is forked too.

    Signals, limits, variables and exit codes are as always. What differs: the process that does the work is no child of
    the one that was started, has a session of its own, and has imported everything.
    """
    environment, here = Path(tempfile.mkdtemp()), Path(sys.prefix)
    (environment / "lib").symlink_to(here / "lib")
    shutil.copy(here / "pyvenv.cfg", environment)
    (environment / "bin").mkdir()
    programs = {"python": [], "python3": [], "cloze": [str(here / "bin" / "cloze")]}
    for other in (here / "bin").iterdir():
        if other.name not in programs:
            (environment / "bin" / other.name).symlink_to(other)
    values = {"real": sys.executable, "directory": str(Path(__file__).parent), "server": _socket(environment)}
    for name, first in programs.items():
        program = environment / "bin" / name
        program.write_text(PROGRAM.format(**values, first=first))
        program.chmod(0o755)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(_socket(environment))
        listener.listen(64)
        server = [sys.executable, "-m", "tests.pipeline.fork_server", str(listener.fileno())]
        process = subprocess.Popen(
            [*server, str(environment / "bin" / "python")],
            cwd=Path(__file__).parents[2],
            env=os.environ | ONE_THREAD,
            # It ends with this process.
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=[listener.fileno()],
            start_new_session=True,
        )
    _started.append(process)
    return environment


def forked(arguments: Sequence[str], environment: Mapping[str, str], streams: Sequence[int]) -> Forked:
    """Start `python ARGUMENTS` as a program of `forked_environment`, but with the process id of what does the work.

    Args:
        streams: file descriptors for its input, output and errors.
    """
    process = Forked(_socket(forked_environment()), arguments, environment, streams)
    assert process.pid, "the server has imported its libraries with other variables"
    return process


def _socket(environment: Path) -> str:
    return str(environment / "socket")


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
        self.directory = Path(tempfile.mkdtemp())
        weakref.finalize(self, shutil.rmtree, self.directory, ignore_errors=True)
        self._output = self.directory / "output"
        self._output.touch()
        shared = {
            **os.environ,
            **ONE_THREAD,
            "WORLD_SIZE": str(workers),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self._store.port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "RETURNED": str(self.directory),
            **(environment or {}),
        }
        words = ["-m", module, *(str(argument) for argument in arguments)]
        with open(os.devnull, "rb") as nothing, self._output.open("ab") as output:
            streams = (nothing.fileno(), output.fileno(), output.fileno())
            self._processes = [
                forked(words, shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)}, streams)
                for rank in range(workers)
            ]

    @property
    def pids(self) -> list[int]:
        """Process ids, by rank."""
        return [process.pid for process in self._processes]

    @property
    def output(self) -> str:
        """What all of them printed so far."""
        return self._output.read_text(errors="replace")

    def poll(self) -> int | None:
        """The exit code of the first that failed; 0 when all have come to their end, None while they run."""
        codes = [process.poll() for process in self._processes]
        return next((code for code in codes if code), None if None in codes else 0)

    def wait(self) -> int:
        """Wait for the end; where one fails, the others are killed. Returns what `poll` does."""
        deadline = time.monotonic() + PATIENCE_S
        while (code := self.poll()) is None:
            running = [process for process in self._processes if process.code is None]
            if not connection.wait(running, deadline - time.monotonic()):
                self.kill()
                raise TimeoutError(self.output[-3000:])
        self.kill()
        return code

    def finish(self) -> str:
        """Wait for the end, which must be a good one; returns what was printed."""
        assert self.wait() == 0, self.output[-3000:]
        return self.output

    def kill(self) -> None:
        """SIGKILL for all."""
        for process in self._processes:
            process.kill()


def wait_until(condition: Callable[[], object], process: Group | subprocess.Popen[Any] | None = None) -> None:
    """Wait for what must happen before a process ends."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        ended = process is not None and process.poll() is not None
        # It may happen right before the end.
        assert not ended or condition(), getattr(process, "output", "")[-3000:]
        assert time.monotonic() < deadline
        time.sleep(0.02)


def start_on_ranks(
    function: Callable[..., Any],
    *arguments: Any,
    workers: int,
    environment: Mapping[str, str] | None = None,
) -> Group:
    """Begin to call a module's function with these arguments in each process of a group."""
    call = pickle.dumps((function, arguments)).hex()
    return Group("tests.pipeline.process_group", [call], workers, environment)


def on_ranks(
    function: Callable[..., Found],
    *arguments: Any,
    workers: int,
    environment: Mapping[str, str] | None = None,
) -> list[Found]:
    """Call it to a good end; returns what it returned, by rank."""
    group = start_on_ranks(function, *arguments, workers=workers, environment=environment)
    group.finish()
    return [pickle.loads((group.directory / str(rank)).read_bytes()) for rank in range(workers)]


if __name__ == "__main__":
    called, given = pickle.loads(bytes.fromhex(sys.argv[1]))
    returned = Path(os.environ["RETURNED"], os.environ["RANK"])
    returned.write_bytes(pickle.dumps(called(*given)))
