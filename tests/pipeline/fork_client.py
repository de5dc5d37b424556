"""Processes that the fork server of the tests makes; as a program, `cloze` and `python` in terms of such processes.

Only small modules are imported here: this takes the place of commands that import for seconds.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import struct
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress

FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT)
"""Signals that a program passes on to the process that does its work."""


TESTS = f"{os.path.dirname(os.path.dirname(os.path.abspath(__file__)))}/"
MODULES = ("cluster.", "data_prep.", "pipeline.", "tests.", "torch.distributed.run")
PROGRAMS = ("cloze", "setup_worker.py", "default_worker.py")
"""The command line, and what workers of Ray begin with."""


class Forked:
    """A process that the server forks, in the directory and with the limits, the umask and the ignored signals of this
    one. It is killed when this one ends."""

    def __init__(
        self,
        server: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        streams: Sequence[int] = (0, 1, 2),
    ) -> None:
        """Start it.

        Args:
            server: path of the server's socket.
            arguments: those of `python`: `-m MODULE` or a script, and what these get.
            streams: file descriptors for its input, output and errors.
        """
        limits = [getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")]
        os.umask(umask := os.umask(0))
        request = {
            "arguments": list(arguments),
            "environment": dict(environment),
            "umask": umask,
            "ignored": [one for one in signal.valid_signals() if signal.getsignal(one) is signal.SIG_IGN],
            "limits": [(limit, resource.getrlimit(limit)) for limit in limits],
        }
        self.code: int | None = None
        """Exit code, negative for a signal, as in `subprocess`; None while it is not known."""
        self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._connection.connect(server)
        here = os.open(".", os.O_RDONLY)
        try:
            socket.send_fds(self._connection, [json.dumps(request).encode()], [*streams, here])
        finally:
            os.close(here)
        self.pid = self._receive()
        """0 where the server makes no such process, because its libraries were imported with other variables."""

    def fileno(self) -> int:
        """Descriptor that can be read from when the process has ended."""
        return self._connection.fileno()

    def poll(self) -> int | None:
        """Return the exit code, if the process has ended."""
        with suppress(BlockingIOError):
            self.wait(0)
        return self.code

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the process to end, and return its exit code.

        Raises:
            TimeoutError, BlockingIOError: it has not ended after so many seconds, at once.
        """
        if self.code is None:
            self._connection.settimeout(timeout)
            try:
                self.code = self._receive()
            finally:
                self._connection.settimeout(None)
            self._connection.close()
        return self.code

    def send_signal(self, number: int) -> None:
        """Send a signal to the process, unless it has ended."""
        if self.code is None:
            self._connection.send(bytes([number]))

    def kill(self) -> None:
        """Send SIGKILL to the process, and wait for its end."""
        self.send_signal(signal.SIGKILL)
        self.wait()

    def _receive(self) -> int:
        if not (number := self._connection.recv(4)):
            raise EOFError("the fork server has ended")
        return struct.unpack("i", number)[0]


def is_served(arguments: Sequence[str]) -> bool:
    """Whether the server makes processes with these arguments. Others, such as services of Ray and processes of
    `multiprocessing`, inherit file descriptors, or need little of what the server has imported."""
    first, second = [*arguments, "", ""][:2]
    if first == "-m":
        return second.startswith(MODULES)
    if first == "-c":
        return "multiprocessing" not in second
    return first.startswith(TESTS) or os.path.basename(first) in PROGRAMS


def main(server: str, real: str, arguments: Sequence[str]) -> None:
    """Run as `python` does with these arguments: start the process, pass signals on, and end as it ends.

    Args:
        real: interpreter for what the server does not do.
    """
    received: list[int] = []
    process: Forked | None = None

    def forward(number: int, _: object) -> None:
        if process is None:
            received.append(number)
        else:
            process.send_signal(number)

    for number in FORWARDED:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, forward)
    buffered = arguments[1:] if arguments[:1] == ["-u"] else arguments
    started = Forked(server, buffered, os.environ) if is_served(buffered) else None
    if started is None or not started.pid:
        # By its first word, the interpreter finds its environment.
        python = os.path.join(os.path.dirname(os.path.abspath(sys.argv[0])), "python")
        os.execv(real, [python, *arguments])
    process = started
    for number in received:
        process.send_signal(number)
    code = process.wait()
    if code < 0:
        # SIGKILL cannot be set.
        with suppress(OSError):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)
