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
        digest = hashlib.sha1(name.encode())
        for file in sorted(self.models[name].iterdir()):
            digest.update(file.name.encode() + file.read_bytes())
        return digest.hexdigest()


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _answer(self, body: bool) -> None:
        hub, path = self.server.hub, unquote(urlsplit(self.path).path).strip("/")
        hub.asked.append(path)
        for name in sorted(hub.models, key=len, reverse=True):
            for start in (f"api/models/{name}", name):
                if path == start or path.startswith(f"{start}/"):
                    self._model(name, path.removeprefix(start).strip("/").split("/"), body)
                    return
        self._error(404, "RepoNotFound")

    def _model(self, name: str, rest: list[str], body: bool) -> None:
        hub = self.server.hub
        commit, files = hub.commit(name), sorted(hub.models[name].iterdir())
        revision = rest[1] if len(rest) > 1 else "main"
        if name in hub.gated:
            self._error(403, "GatedRepo")
        elif revision not in ("main", commit):
            self._error(404, "RevisionNotFound")
        elif rest[0] in ("", "revision"):
            siblings = [{"rfilename": file.name} for file in files]
            self._json({"id": name, "sha": commit, "siblings": siblings, "tags": [], "private": False})
        elif rest[0] == "tree":
            entries = [
                {"type": "file", "path": file.name, "size": file.stat().st_size, "oid": _etag(file)}
                for file in files
            ]
            self._json(entries)
        elif rest[2] in hub.broken or not (hub.models[name] / rest[2]).is_file():
            self._error(500 if rest[2] in hub.broken else 404, "EntryNotFound")
        else:
            file = hub.models[name] / rest[2]
            self.send_response(200)
            self.send_header("X-Repo-Commit", commit)
            self.send_header("ETag", f'"{_etag(file)}"')
            self.send_header("Content-Length", str(file.stat().st_size))
            self.end_headers()
            if body:
                self.wfile.write(file.read_bytes())

    def _json(self, value: object) -> None:
        contents = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(contents)))
        self.end_headers()
        self.wfile.write(contents)

    def _error(self, status: int, code: str) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    hub: Hub


def _etag(file: Path) -> str:
    return hashlib.sha1(file.read_bytes()).hexdigest()


@contextmanager
def serve(models: Mapping[str, Path]) -> Iterator[Hub]:
    """Answer on a free port until the block ends."""
    server = _Server(("127.0.0.1", 0), _Handler)
    server.hub = Hub(models, f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
