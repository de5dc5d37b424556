"""A publisher on this machine that misbehaves as told."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Answer:
    """How one request is answered."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    cut_at: int | None = None
    """Bytes of the body after which the connection is dropped."""
    ignore_range: bool = False
    ignore_if_range: bool = False
    length: int | None = None
    """A Content-Length that is not that of the body."""
    no_length: bool = False


@dataclass
class Publisher:
    """Files by path, answers in order for each path (then plain ones), and what was asked."""

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    """ETag by path; files without one have none."""
    answers: dict[str, list[Answer]] = field(default_factory=dict)
    asked: list[tuple[str, str | None]] = field(default_factory=list)
    """(path, Range) of every request."""
    agents: set[str] = field(default_factory=set)
    changes: dict[str, bytes] = field(default_factory=dict)
    """Contents that files have from their second request on, with the ETag `"changed"`."""
    busy: int = 0
    most_busy: int = 0
    lock: Any = field(default_factory=threading.Lock)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    publisher: Publisher

    def do_GET(self) -> None:
        own = self.publisher
        with own.lock:
            own.busy += 1
            own.most_busy = max(own.most_busy, own.busy)
        try:
            self._answer(own)
        finally:
            with own.lock:
                own.busy -= 1

    def _answer(self, own: Publisher) -> None:
        asked = self.headers.get("Range")
        with own.lock:
            if any(path == self.path for path, _ in own.asked) and self.path in own.changes:
                own.files[self.path] = own.changes.pop(self.path)
                own.tags[self.path] = '"changed"'
            own.asked.append((self.path, asked))
            own.agents.add(self.headers.get("User-Agent", ""))
            planned = own.answers.get(self.path, [])
            answer = planned.pop(0) if planned else Answer()
        body = own.files.get(self.path)
        if body is None and answer.status == 200:
            answer = Answer(404)
        if answer.status != 200 or body is None:
            self._send(answer, answer.status, b"", {})
            return
        tag = own.tags.get(self.path, "")
        headers = {"ETag": tag} if tag else {}
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked else 0
        same = answer.ignore_if_range or self.headers.get("If-Range", tag) == tag
        if not asked or answer.ignore_range or not same:
            self._send(answer, 200, body, headers)
        elif start >= len(body):
            self._send(answer, 416, b"", headers)
        else:
            headers["Content-Range"] = f"bytes {start}-{len(body) - 1}/{len(body)}"
            self._send(answer, 206, body[start:], headers)

    def _send(self, answer: Answer, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in (headers | answer.headers).items():
            self.send_header(name, value)
        if answer.no_length:
            self.send_header("Connection", "close")
            self.close_connection = True
        else:
            self.send_header("Content-Length", str(len(body) if answer.length is None else answer.length))
        self.end_headers()
        self.wfile.write(body[: answer.cut_at])
        if answer.cut_at is not None:
            self.close_connection = True

    def log_message(self, *_: Any) -> None:
        """Nothing on stderr."""


@contextmanager
def serve() -> Iterator[Publisher]:
    """A publisher that answers as long as the block runs."""
    own = Publisher()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"publisher": own}))
    own.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield own
    finally:
        server.shutdown()
        server.server_close()
