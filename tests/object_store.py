"""An S3 server on this machine for tests, and a proxy in front of it that drops, throttles, and counts."""

from __future__ import annotations

import http.client
import itertools
import socket
import struct
import subprocess
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import urlsplit

import pytest
import s3fs
from moto.server import ThreadedMotoServer

from tests.surroundings import serving

SLOW_DOWN = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER: close with RST at once."""


@contextmanager
def running_store() -> Iterator[str]:
    """A server with a bucket called `bucket`, which every client of this process and its children finds in the
    environment; yields its address."""
    running = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    _, port = running.get_host_and_port()
    address = f"http://127.0.0.1:{port}"
    with pytest.MonkeyPatch.context() as patched:
        settings = {
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        for name, value in settings.items():
            patched.setenv(name, value)
        # All servers of a process have the same objects.
        urllib.request.urlopen(urllib.request.Request(f"{address}/moto-api/reset", method="POST")).close()
        with reached_at(address):
            s3fs.S3FileSystem().mkdir("bucket")
            yield address
    running.stop()


@contextmanager
def reached_at(address: str) -> Iterator[None]:
    """Clients reach their store at this address."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("AWS_ENDPOINT_URL", address)
        s3fs.S3FileSystem.clear_instance_cache()
        yield
    s3fs.S3FileSystem.clear_instance_cache()


def pass_on(number: int, request: Request) -> str:
    """No fault."""
    return ""


@dataclass
class Request:
    """A request that came to the proxy."""

    method: str
    path: str
    """With the query."""


@dataclass
class Proxy:
    """In front of a store."""

    address: str
    fault: Callable[[int, Request], str] = pass_on
    """From the number of a request, counted from 0, and the request to the name of a fault: `slow_down` answers 503,
    `reset` closes the connection in the middle of the answer, `lost` before it, after the store has done what it was
    asked for; nothing passes the request on."""
    requests: list[Request] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    """Of every request that had one."""

    def count(self, method: str, end: str) -> int:
        """Requests of a method for a path with this end."""
        return sum(one.method == method and urlsplit(one.path).path.endswith(end) for one in self.requests)


@contextmanager
def behind_proxy(store: str) -> Iterator[Proxy]:
    """Clients reach the store through a proxy."""
    behind, numbers = urlsplit(store).netloc, itertools.count()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            request = Request(self.command, self.path)
            proxy.requests.append(request)
            fault = proxy.fault(next(numbers), request)
            if fault:
                proxy.faults.append(fault)
            if fault == "slow_down":
                return self.send(503, {"Content-Type": "application/xml"}, SLOW_DOWN, len(SLOW_DOWN))
            connection = http.client.HTTPConnection(behind)
            connection.request(self.command, self.path, body, dict(self.headers.items()))
            found = connection.getresponse()
            data = found.read()
            connection.close()
            size = int(found.headers.get("Content-Length") or len(data))
            if fault != "lost":
                self.send(found.status, dict(found.headers), data[: len(data) // 2] if fault else data, size)
            if fault:
                self.wfile.flush()
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                self.connection.close()
                self.close_connection = True
            return None

        def send(self, status: int, headers: dict[str, str], data: bytes, size: int) -> None:
            self.send_response_only(status)
            for name, value in headers.items():
                if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                    self.send_header(name, value)
            self.send_header("Content-Length", str(size))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = answer

        def log_message(self, format: str, *args: Any) -> None: ...

        def finish(self) -> None:
            with suppress(OSError):
                super().finish()

    with serving(Handler) as host, reached_at(f"http://{host}"):
        proxy = Proxy(f"http://{host}")
        yield proxy


@contextmanager
def killed_at_the_second_file(proxy: Proxy, method: str) -> Iterator[Callable[..., None]]:
    """Leave requests for `b.bin` unanswered; yields what kills a process once it asks and a condition holds."""
    asked, killed = threading.Event(), threading.Event()

    def stop(number: int, request: Request) -> str:
        if request.method == method and "b.bin" in request.path:
            asked.set()
            killed.wait()
            return "slow_down" if method == "PUT" else ""
        return ""

    def kill(process: subprocess.Popen[Any], ready: Callable[[], bool]) -> None:
        asked.wait()
        while not ready():
            assert process.poll() is None
        process.kill()
        process.wait()
        killed.set()

    proxy.fault = stop
    yield kill
    proxy.fault = pass_on


def flip_byte(place: str, position: int = -1) -> None:
    """Change a byte of an object."""
    client = s3fs.S3FileSystem()
    data = bytearray(client.cat_file(place))
    data[position] ^= 0xFF
    client.pipe_file(place, bytes(data))


def objects(uri: str) -> list[str]:
    """Names of all objects below a place, relative to it."""
    client = s3fs.S3FileSystem(use_listings_cache=False)
    root = uri.removeprefix("s3://")
    return sorted(path.removeprefix(f"{root}/") for path in client.find(root))
