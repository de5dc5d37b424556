"""The metrics over HTTP, as Prometheus asks for them, and the files that Prometheus and Grafana need."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest, start_http_server

from cluster.artefacts.errors import ConfigError
from cluster.artefacts.manifest import write_durably
from cluster.artefacts.storage import storage_errors
from pipeline.watch.prometheus import ClozeCollector

TEMPLATES = ("prometheus.yaml", "alerts.yaml", "dashboard.json")
_RUNBOOK = "runbook_url: runbooks/"
_PLAIN_URL = re.compile(r"[\w.:/~%-]+")


@dataclass(frozen=True, slots=True)
class Server:
    """A server that answers in a thread of its own."""

    url: str
    thread: threading.Thread

    def wait(self) -> None:
        """Wait until the program is stopped."""
        self.thread.join()


@contextmanager
def serve(collector: ClozeCollector, host: str, port: int) -> Iterator[Server]:
    """Serve metrics for the time of the block.

    Args:
        port: 0 for a free one.

    Raises:
        ConfigError: host or port cannot be listened on.
    """
    try:
        server, thread = start_http_server(port, host, _registry(collector))
    except OSError as error:
        raise ConfigError(
            f"Cannot listen on {host}, port {port}: {error.strerror or error}.",
            next_step="cloze metrics --port PORT, with another one (0 for any that is free)",
        ) from error
    bound, number = server.server_address[:2]
    shown = f"[{bound}]" if ":" in str(bound) else bound
    try:
        yield Server(f"http://{shown}:{number}/metrics", thread)
    finally:
        server.shutdown()
        server.server_close()


def exposition(collector: ClozeCollector) -> str:
    """The metrics in Prometheus's text format."""
    return generate_latest(_registry(collector)).decode()


def write_files(directory: Path, runbooks: str) -> list[Path]:
    """Write TEMPLATES into a directory; files of these names are replaced.

    Args:
        runbooks: what the alerts' links to runbooks begin with.

    Raises:
        ConfigError: `runbooks` has characters that are in no address.
        StorageError: the file system refuses.
    """
    if not _PLAIN_URL.fullmatch(runbooks):
        raise ConfigError(
            f"--runbooks {runbooks!r} is not an address.", next_step="--runbooks https://HOST/runbooks"
        )
    templates = files("cluster") / "templates" / "monitoring"
    with storage_errors(directory):
        directory.mkdir(parents=True, exist_ok=True)
        for name in TEMPLATES:
            text = (templates / name).read_text(encoding="utf-8")
            linked = text.replace(_RUNBOOK, f"runbook_url: {runbooks.rstrip('/')}/")
            write_durably(directory / name, linked.encode())
    return [directory / name for name in TEMPLATES]


def _registry(collector: ClozeCollector) -> CollectorRegistry:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    return registry
