"""Surroundings of tests in every folder: a plain environment, flipped bits, a full disk, and a web server."""

from __future__ import annotations

import os
import resource
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any


def plain_environment() -> dict[str, str]:
    """The environment of this process, without a cluster, a tracking store or settings of cloze."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("CLOZE_", "MLFLOW_", "RAY_"))
    }


def flip_bit(path: Path) -> bytes:
    """Change one bit in the middle of a file, as a bad disk does, and return what the file held."""
    good = path.read_bytes()
    data = bytearray(good)
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    return good


@contextmanager
def largest_file(size_bytes: int) -> Iterator[None]:
    """The kernel refuses to let files of this process grow beyond a size, in the middle of a line if need be."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


@contextmanager
def serving(handler: Any) -> Iterator[str]:
    """Host and port of a web server on this machine, which answers until the block ends."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
