"""Whether somebody answers at an address, within seconds and without importing Ray."""

from __future__ import annotations

import socket
import urllib.error
import urllib.request
from collections.abc import Mapping
from http.client import HTTPException
from urllib.parse import urlsplit

from cluster.artefacts.errors import ClusterUnreachableError

TIMEOUT_S = 4.0
"""Longest wait for a connection, and for its answer."""
_WANTS_AUTHENTICATION = (401, 403)


def http_get(
    url: str, headers: Mapping[str, str] | None = None, timeout_s: float = TIMEOUT_S
) -> tuple[int, bytes]:
    """Status and body of a URL, whatever the status.

    Raises:
        OSError: nobody answers, or what answers does not speak HTTP.
    """
    try:
        request = urllib.request.Request(url, headers=dict(headers or {}))
        with urllib.request.urlopen(request, timeout=timeout_s) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()
    except (HTTPException, ValueError) as error:
        raise OSError(f"{type(error).__name__}: {error}") from error


def tcp_answers(host: str, port: int, timeout_s: float = TIMEOUT_S) -> bool:
    """Whether a TCP connection to host and port is accepted."""
    try:
        with socket.create_connection((host, port), timeout=timeout_s):
            return True
    except OSError:
        return False


def host_and_port(address: str, default_port: int) -> tuple[str, int]:
    """Host and port of `host:port` or of a URL.

    Raises:
        ValueError: the port is no number.
    """
    parts = urlsplit(address if "://" in address else f"//{address}")
    return parts.hostname or address, parts.port or default_port


def require_dashboard(url: str) -> None:
    """Make sure that a Ray dashboard, which serves the Job API, answers at `url`.

    One that asks who we are is there too; proving it is left to Ray's client.

    Raises:
        ClusterUnreachableError: nothing answers within seconds, or it is no Ray dashboard.
    """
    try:
        status, body = http_get(f"{url.rstrip('/')}/api/version")
    except OSError as error:
        raise unreachable(url, str(getattr(error, "reason", None) or error)) from error
    if status not in _WANTS_AUTHENTICATION and b"ray_version" not in body:
        raise unreachable(url, f"what answers is no Ray dashboard (HTTP status {status})")


def unreachable(address: str, reason: str) -> ClusterUnreachableError:
    """The error for an address where no cluster can be used."""
    return ClusterUnreachableError(
        f"No Ray cluster answers at {address}: {reason}",
        next_step=(
            "check the address, which is http://HOST:8265 unless the cluster's dashboard has another port;"
            " without --address, RAY_ADDRESS and RAY_API_SERVER_ADDRESS an own local cluster is used"
        ),
    )
