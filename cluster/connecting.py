"""Reaching a Ray cluster that runs elsewhere: within seconds, or refused with one error that says what to check.

Importing this module imports neither Ray nor gRPC.
"""

from __future__ import annotations

import os
import socket
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from http.client import HTTPException
from typing import IO, Any, TypeVar
from urllib.parse import urlsplit

from cluster.artefacts.errors import ClusterUnreachableError

ADDRESS_VARIABLES = ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS")
"""Environment variables with an address, used when none is given; the first that is set wins."""
TIMEOUT_S = 4.0
"""Longest wait for a connection, and for its answer."""
_LOOKUP_TIMEOUT_S = 15.0
_START_S = 60.0
Result = TypeVar("Result")
_WANTS_AUTHENTICATION = (401, 403)
_REFUSED_TOKEN = ("InvalidAuthToken", "Unauthenticated", "AuthenticationError")
"""Words in Ray's log when the cluster's token is missing or wrong."""


def named_address(given: str | None) -> str | None:
    """The given address or the one from the environment; None when neither names a cluster."""
    chosen = next(filter(None, [given, *map(os.environ.get, ADDRESS_VARIABLES)]), None)
    return None if chosen == "local" else chosen


@contextmanager
def without_address_variables() -> Iterator[None]:
    """Hide ADDRESS_VARIABLES for the block: Ray lets them win over its arguments."""
    kept = {name: os.environ.pop(name) for name in ADDRESS_VARIABLES if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(kept)


def named_exactly(address: str) -> str:
    """`HOST:PORT` in place of `auto`; other addresses as they are.

    Raises:
        ClusterUnreachableError: no cluster runs here.
    """
    from cluster.ray_internals import automatic_address

    if address != "auto":
        return address
    try:
        return automatic_address()
    except ConnectionError as error:
        raise unreachable(address, error) from error


def connect_to_cluster(address: str, **options: Any) -> None:
    """`ray.init` at an address that the user named. `options` go to `ray.init`.

    Raises:
        ClusterUnreachableError: nothing answers there, the answer does not come from Ray, or the token is refused.
    """
    import ray
    from ray.exceptions import AuthenticationError

    _require_grpc(address)
    with _captured_stderr() as written:
        try:
            ray.init(address=address, **options)
        except AuthenticationError as error:
            raise access_refused(address, error) from error
        except (ConnectionError, RuntimeError, ValueError) as error:
            written.seek(0)
            said = f"{error}{written.read().decode(errors='replace')}"
            if any(word in said for word in _REFUSED_TOKEN):
                raise access_refused(address, "the token is missing or wrong") from error
            raise unreachable(address, error) from error


def dashboard_at(address: str) -> str:
    """URL of the dashboard, which serves the Job API, of the cluster at an address of any form.

    Args:
        address: `http://HOST:8265`, `HOST:6379`, `ray://HOST:10001` or `auto`.

    Raises:
        ClusterUnreachableError: nothing answers within seconds, or the answer does not come from a Ray dashboard.
    """
    if not address.startswith(("http://", "https://")):
        _require_grpc(address)
        from cluster.ray_internals import dashboard_of

        cluster = address
        # Ray's own look-up may wait for minutes where no cluster answers.
        with without_address_variables():
            try:
                address = within(_LOOKUP_TIMEOUT_S, lambda: dashboard_of(cluster))
            except Exception as error:
                raise unreachable(address, error) from error
    require_dashboard(address)
    return address.rstrip("/")


def require_dashboard(url: str) -> None:
    """Make sure that a Ray dashboard answers at `url`; one that asks for a token counts.

    Raises:
        ClusterUnreachableError: nothing answers within seconds, or the answer does not come from a Ray dashboard.
    """
    try:
        status, body = http_get(f"{url.rstrip('/')}/api/version")
    except OSError as error:
        raise unreachable(url, getattr(error, "reason", None) or error) from error
    if status not in _WANTS_AUTHENTICATION and b"ray_version" not in body:
        raise unreachable(url, f"the answer comes from no Ray dashboard (HTTP status {status})")


def http_get(url: str) -> tuple[int, bytes]:
    """HTTP status and body of a URL, whatever the status.

    Raises:
        OSError: nothing answers, or the answer is not HTTP.
    """
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()
    except (HTTPException, ValueError) as error:
        raise OSError(f"{type(error).__name__}: {error}") from error


def tcp_answers(host: str, port: int) -> bool:
    """Whether a TCP connection to host and port is accepted."""
    try:
        with socket.create_connection((host, port), timeout=TIMEOUT_S):
            return True
    except OSError:
        return False


def await_head(address: str) -> None:
    """Return when a head that is starting accepts connections at `HOST:PORT`, or after a minute; at once for addresses
    of other forms. Ray probes its port before it listens there, so that one connection may be accepted too early."""
    if "://" in address or ":" not in address:
        return
    host, port = host_and_port(address, 0)
    deadline = time.monotonic() + _START_S
    while not tcp_answers(host, port) and time.monotonic() < deadline:
        time.sleep(1.0)


def host_and_port(address: str, default_port: int) -> tuple[str, int]:
    """Host and port of `host:port` or of a URL.

    Raises:
        ValueError: the port is not a number.
    """
    parts = urlsplit(address if "://" in address else f"//{address}")
    return parts.hostname or address, parts.port or default_port


def unreachable(address: str, reason: object) -> ClusterUnreachableError:
    """The error for an address without a reachable cluster."""
    return ClusterUnreachableError(
        f"No Ray cluster answers at {address}: {_first_line(reason)}",
        next_step=(
            "check the address with `ray status --address=HOST:6379`: submitted jobs take http://HOST:8265 (the"
            " dashboard) or HOST:6379, other commands HOST:6379, unless the cluster was started with other ports;"
            " without --address, RAY_ADDRESS and RAY_API_SERVER_ADDRESS a local cluster is used"
        ),
    )


def access_refused(address: str, reason: object) -> ClusterUnreachableError:
    """The error for a cluster that does not accept our token."""
    return ClusterUnreachableError(
        f"The Ray cluster at {address} refuses access: {_first_line(reason)}",
        next_step=(
            "export RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH=FILE, where FILE holds the cluster's token"
            " (on its head node `~/.ray/auth_token` unless set otherwise)"
        ),
    )


def _first_line(reason: object) -> str:
    return (str(reason) or type(reason).__name__).partition("\n")[0]


def _require_grpc(address: str) -> None:
    """Ray itself tries for ten minutes to reach a port where nothing, or something else, listens."""
    import grpc

    target = address.removeprefix("ray://")
    if ":" not in target or "://" in target:
        return
    with grpc.insecure_channel(target, options=[("grpc.enable_http_proxy", 0)]) as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout=TIMEOUT_S)
        except grpc.FutureTimeoutError:
            raise unreachable(address, f"no answer within {TIMEOUT_S:.0f} s") from None


def within(timeout_s: float, call: Callable[[], Result]) -> Result:
    """The result of a call that has no deadline of its own, made in a thread that is given up.

    Raises:
        ConnectionError: it takes longer; besides, what the call raises.
    """
    done: Future[Result] = Future()

    def run() -> None:
        try:
            done.set_result(call())
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    try:
        return done.result(timeout_s)
    except TimeoutError as error:
        if done.done():
            raise
        raise ConnectionError(f"no answer within {timeout_s:.0f} s") from error


@contextmanager
def _captured_stderr() -> Iterator[IO[bytes]]:
    """Keep what Ray's C++ part writes to file descriptor 2; shown after the block, unless the block fails."""
    sys.stderr.flush()
    with tempfile.TemporaryFile() as written:
        kept = os.dup(2)
        os.dup2(written.fileno(), 2)
        try:
            yield written
        finally:
            sys.stderr.flush()
            os.dup2(kept, 2)
            os.close(kept)
        written.seek(0)
        sys.stderr.write(written.read().decode(errors="replace"))
