"""Forks Python processes, after it has done what each of them would do for seconds: import, and set up the first step.

`python -m tests.pipeline.fork_server DESCRIPTOR PYTHON` listens on that socket until its input ends. What it forks has
that `sys.executable`. Nothing here may start a thread, which a fork would not have.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import resource
import runpy
import select
import signal
import socket
import struct
import sys
import tempfile
import time
import types
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

_exit_code = [0]
LARGEST_REQUEST = 128 * 1024
READ_AT_IMPORT = ("DS_", "HF_", "LD_", "MALLOC_", "NUMBA_", "OMP_NUM_THREADS")
"""Beginnings of the names of variables that libraries read when they are imported, and never again."""


def prepare() -> None:
    """Do once what every process would do until its first step, two thirds of what a short run takes."""
    import pyarrow as pa
    import pytest  # noqa: F401
    import torch

    import pipeline.api
    import pipeline.commands.verbs
    import pipeline.pretrain.assembly  # With DeepSpeed.
    import pipeline.pretrain.launch
    import pipeline.tune.run  # noqa: F401
    from data_prep.hashing import hash_strings
    from tests.tracking_stores import copied_stores

    # Imports torch's compiler, as optimizers do.
    torch.compile(torch.nn.Identity())
    # Sets up numba.
    hash_strings(pa.array(["x"]))
    # No process waits for the tables of a new store.
    copied_stores().__enter__()
    gc.collect()
    gc.freeze()


def serve(listener: socket.socket, before: Mapping[str, str]) -> Callable[[], None] | None:
    """Answer requests, each in a fork, until the input ends. In a process that was asked for, return what it is to do.

    Args:
        before: variables before anything was imported.
    """
    # Nobody asks how an answering process ended.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        ready, _, _ = select.select([0, listener], [], [])
        if 0 in ready:
            return None
        connection, _ = listener.accept()
        if not os.fork():
            listener.close()
            return _answer(connection, before)
        connection.close()


def _answer(connection: socket.socket, before: Mapping[str, str]) -> Callable[[], None]:
    """Fork the process that a client asks for, signal it as the client says, and tell how it ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    message, descriptors, *_ = socket.recv_fds(connection, LARGEST_REQUEST, 4)
    # A client may be killed before it has asked.
    request = json.loads(message or "null")
    if request is None or _differ(before, request["environment"]):
        _send(connection, 0)
        os._exit(0)
    if not (pid := os.fork()):
        connection.close()
        imported = {name: value for name, value in os.environ.items() if before.get(name) != value}
        return lambda: become(request, descriptors, imported)
    for descriptor in descriptors:
        os.close(descriptor)
    _send(connection, pid)
    ended = os.pidfd_open(pid)
    while ended not in select.select([connection, ended], [], [])[0]:
        # Where the client was killed, so is its process.
        if not (numbers := _receive(connection)):
            signal.pidfd_send_signal(ended, signal.SIGKILL)
            # The first process of a container may collect none.
            os.waitpid(pid, 0)
            os._exit(0)
        signal.pidfd_send_signal(ended, numbers[0])
    _send(connection, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    # The client closes it first: were a signal of it unread, it would get an error and no answer.
    while _receive(connection):
        pass
    os._exit(0)


def _differ(before: Mapping[str, str], environment: Mapping[str, str]) -> bool:
    """Whether libraries would have read other variables."""
    names = {name for name in {*environment, *before} if name.startswith(READ_AT_IMPORT)}
    return any(environment.get(name) != before.get(name) for name in names)


def _receive(connection: socket.socket) -> bytes:
    with suppress(OSError):
        return connection.recv(1)
    return b""


def _send(connection: socket.socket, number: int) -> None:
    with suppress(OSError):
        connection.send(struct.pack("i", number))


def become(request: Mapping[str, Any], descriptors: Sequence[int], imported: Mapping[str, str]) -> None:
    """Turn this fork into the process that was asked for, and run its program.

    Args:
        imported: variables that imports have set.
    """
    os.setsid()
    *streams, directory = descriptors
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
    os.fchdir(directory)
    for descriptor in descriptors:
        os.close(descriptor)
    os.umask(request["umask"])
    for limit, values in request["limits"]:
        if resource.getrlimit(limit) != tuple(values):
            resource.setrlimit(limit, values)
    path = _without_own(sys.path, os.environ.get("PYTHONPATH", ""))
    os.environ.clear()
    os.environ.update({**imported, **request["environment"]})
    time.tzset()
    tempfile.tempdir = None
    # The standard library draws anew after a fork.
    np.random.seed()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in request["ignored"]:
        signal.signal(number, signal.SIG_IGN)
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:] = [one for one in given if one] + path
    try:
        _run(*request["arguments"])
    except SystemExit as ended:
        _exit_code[0] = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        raise
    except KeyboardInterrupt:
        _exit_code[0] = -signal.SIGINT
        raise
    except BaseException:
        _exit_code[0] = 1
        raise


def _run(first: str, *rest: str) -> None:
    """Run a program by the arguments of `python`."""
    if first == "-m":
        sys.path.insert(0, os.getcwd())
        sys.argv = [*rest]
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif first == "-c":
        code, *rest = rest
        sys.path.insert(0, "")
        sys.argv = [first, *rest]
        main = types.ModuleType("__main__")
        sys.modules["__main__"] = main
        exec(code, vars(main))
    else:
        sys.path.insert(0, os.path.dirname(first))
        sys.argv = [first, *rest]
        runpy.run_path(first, run_name="__main__")


def _without_own(path: Sequence[str], python_path: str) -> list[str]:
    """The places of modules besides the first, which is the program's, and those of PYTHONPATH."""
    own = {os.path.abspath(one) for one in python_path.split(os.pathsep) if one}
    return [one for one in path[1:] if os.path.abspath(one) not in own]


def leave() -> None:
    """End a forked process when all else is done: the interpreter would touch, and so copy, all memory."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    if _exit_code[0] < 0:
        signal.signal(-_exit_code[0], signal.SIG_DFL)
        os.kill(os.getpid(), -_exit_code[0])
    os._exit(_exit_code[0])


if __name__ == "__main__":
    before = dict(os.environ)
    descriptor, sys.executable = sys.argv[1:]
    # Exit handlers run in the reverse order of their registration: this one runs last.
    atexit.register(leave)
    with socket.socket(fileno=int(descriptor)) as listening:
        prepare()
        run = serve(listening, before)
    if run is not None:
        run()
