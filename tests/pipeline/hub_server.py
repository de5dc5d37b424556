"""A Hugging Face Hub on this machine: the requests that downloading a model's files makes, and a count of them."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

Answer = tuple[int, dict[str, str], bytes]
"""Status, headers and body."""


@dataclass
class Hub:
    """Models by name, each a directory whose files lie at its root."""

    models: Mapping[str, Path]
    url: str = ""
    gated: set[str] = field(default_factory=set)
    broken: set[str] = field(default_factory=set)
    """Files that are answered with an error of the server."""
    asked: list[str] = field(default_factory=list)
    """The paths of all requests, in order."""

    def commit(self, name: str) -> str:
        """The only commit of a model."""
        files = sorted(self.models[name].iterdir())
        return _hash(name.encode(), *(file.name.encode() + file.read_bytes() for file in files))

    def answer(self, path: str) -> Answer:
        self.asked.append(path)
        for name in sorted(self.models, key=len, reverse=True):
            for start in (f"api/models/{name}", name):
                if path == start or path.startswith(f"{start}/"):
                    return self._of_model(name, path.removeprefix(start).strip("/").split("/"))
        return _error(404, "RepoNotFound")

    def _of_model(self, name: str, rest: list[str]) -> Answer:
        commit, files = self.commit(name), sorted(self.models[name].iterdir())
        revision = rest[1] if len(rest) > 1 else "main"
        if name in self.gated and rest[0] == "resolve":  # anybody may read the description
            return _error(403, "GatedRepo")
        if revision not in ("main", commit):
            return _error(404, "RevisionNotFound")
        if rest[0] in ("", "revision"):
            siblings = [{"rfilename": file.name} for file in files]
            return _json({"id": name, "sha": commit, "siblings": siblings, "tags": [], "private": False})
        if rest[0] == "tree":
            return _json(
                [
                    {"type": "file", "path": file.name, "size": file.stat().st_size, "oid": _etag(file)}
                    for file in files
                ]
            )
        file = self.models[name] / rest[2]
        if rest[2] in self.broken or not file.is_file():
            return _error(500 if rest[2] in self.broken else 404, "EntryNotFound")
        return 200, {"X-Repo-Commit": commit, "ETag": f'"{_etag(file)}"'}, file.read_bytes()


def _hash(*contents: bytes) -> str:
    return hashlib.sha1(b"".join(contents)).hexdigest()


def _etag(file: Path) -> str:
    return _hash(file.read_bytes())


def _json(value: object) -> Answer:
    return 200, {"Content-Type": "application/json"}, json.dumps(value).encode()


def _error(status: int, code: str) -> Answer:
    return status, {"X-Error-Code": code}, b""


@contextmanager
def serve(models: Mapping[str, Path]) -> Iterator[Hub]:
    """Answer on a free port until the block ends."""
    hub = Hub(models)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, headers, body = hub.answer(unquote(urlsplit(self.path).path).strip("/"))
            self.send_response(status)
            for name, value in (headers | {"Content-Length": str(len(body))}).items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        do_HEAD = do_GET

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        hub.url = f"http://127.0.0.1:{server.server_address[1]}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield hub
        finally:
            server.shutdown()
