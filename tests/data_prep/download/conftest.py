"""A publisher on this machine that misbehaves as told, and requests that do not wait long for it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest

from data_prep.download.fetch import Http
from tests.surroundings import serving


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
    """A Content-Length that differs from the length of the body."""
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
        own, asked = self.publisher, self.headers.get("Range")
        with own.lock:
            own.busy += 1
            own.most_busy = max(own.most_busy, own.busy)
            if any(path == self.path for path, _ in own.asked) and self.path in own.changes:
                own.files[self.path] = own.changes.pop(self.path)
                own.tags[self.path] = '"changed"'
            own.asked.append((self.path, asked))
            own.agents.add(self.headers.get("User-Agent", ""))
            planned = own.answers.get(self.path, [])
            answer = planned.pop(0) if planned else Answer()
        try:
            self._answer(own, answer, asked)
        finally:
            with own.lock:
                own.busy -= 1

    def _answer(self, own: Publisher, answer: Answer, asked: str | None) -> None:
        body, tag = own.files.get(self.path), own.tags.get(self.path, "")
        status = 404 if body is None and answer.status == 200 else answer.status
        headers = {"ETag": tag} if tag and status == 200 else {}
        body = (body or b"") if status == 200 else b""
        is_same = answer.ignore_if_range or self.headers.get("If-Range", tag) == tag
        if status == 200 and asked and is_same and not answer.ignore_range:
            start, end = int(asked.removeprefix("bytes=").removesuffix("-")), len(body)
            status, body = (206, body[start:]) if start < end else (416, b"")
            headers |= {"Content-Range": f"bytes {start}-{end - 1}/{end}"} if body else {}
        length = str(len(body) if answer.length is None else answer.length)
        headers |= {"Connection": "close"} if answer.no_length else {"Content-Length": length}
        self.send_response(status)
        for header in (headers | answer.headers).items():
            self.send_header(*header)
        self.end_headers()
        self.wfile.write(body[: answer.cut_at])
        self.close_connection |= answer.no_length or answer.cut_at is not None

    def log_message(self, *_: Any) -> None:
        """Nothing on stderr."""


@contextmanager
def serve() -> Iterator[Publisher]:
    """A publisher that answers as long as the block runs."""
    own = Publisher()
    with serving(type("Handler", (_Handler,), {"publisher": own})) as host:
        own.url = f"http://{host}"
        yield own


@pytest.fixture
def publisher() -> Iterator[Publisher]:
    with serve() as own:
        yield own


@pytest.fixture
def http() -> Iterator[Http]:
    """Requests that wait for milliseconds."""
    own = Http(attempts=4, first_wait_s=0.01, longest_wait_s=0.02, timeout_s=5)
    with own.session:
        yield own
