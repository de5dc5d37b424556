"""The way to a cluster's Job API: which address, whether somebody answers there, and errors that say so."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from cluster.artefacts.errors import ClusterUnreachableError
from cluster.local_cluster import find_local_cluster, own_cluster_at
from cluster.probe import host_and_port, require_dashboard, tcp_answers, unreachable

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient

ADDRESS_VARIABLES = ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS")
"""Where an address is looked for when none is given; the first that is set counts."""
_GCS_PORT = 6379
_RAY_CLIENT_PORT = 10001
_LOOKUP_TIMEOUT_S = 15.0


def resolve_address(given: str | None) -> str:
    """The address to use: the given one, one from the environment, or that of the own local cluster.

    Raises:
        ClusterUnreachableError: there is none.
    """
    if named := named_address(given):
        return named
    if local := find_local_cluster():
        return local.address
    raise ClusterUnreachableError(
        "No Ray address was given, and no own local cluster runs.",
        next_step="cloze submit -- VERB ... starts one; for another cluster add --address http://HOST:8265",
    )


def named_address(given: str | None) -> str | None:
    """The given address or the one from the environment; None when neither names a cluster."""
    candidates = [given, *map(os.environ.get, ADDRESS_VARIABLES)]
    chosen = next((candidate for candidate in candidates if candidate), None)
    return None if chosen == "local" else chosen


def connect(address: str) -> JobSubmissionClient:
    """A client for the Job API at `http://host:8265`, `host:6379`, `ray://host:10001` or `auto`.

    Raises:
        ClusterUnreachableError: nothing answers, within seconds.
    """
    url = _dashboard_url(address)
    require_dashboard(url)
    from ray.job_submission import JobSubmissionClient

    for name in ("dashboard_sdk", "job.sdk"):
        logging.getLogger(f"ray.dashboard.modules.{name}").setLevel(logging.WARNING)
    logging.getLogger("ray._private.runtime_env.packaging").setLevel(logging.WARNING)
    # Ray lets the environment win over the argument; what the user typed wins here.
    own = own_cluster_at(url)
    with _hidden_variables(ADDRESS_VARIABLES), answering(url):
        return JobSubmissionClient(url, headers=own.headers if own else None)


@contextmanager
def answering(address: str) -> Iterator[None]:
    """Turn a connection that breaks in the block into the error that says so.

    Raises:
        ClusterUnreachableError: the cluster at `address` went away.
    """
    from aiohttp import ClientError
    from ray.exceptions import AuthenticationError
    from requests.exceptions import RequestException

    try:
        yield
    except AuthenticationError as error:
        raise ClusterUnreachableError(
            f"The cluster at {address} does not let us in: {error}",
            next_step="set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN_PATH to a file with the cluster's token",
        ) from error
    except (RequestException, ClientError, ConnectionError) as error:
        raise unreachable(address, str(error) or type(error).__name__) from error


def _dashboard_url(address: str) -> str:
    """The dashboard of the cluster that an address of any kind names."""
    if address.startswith(("http://", "https://")):
        return address.rstrip("/")
    if address != "auto":
        scheme_port = _RAY_CLIENT_PORT if address.startswith("ray://") else _GCS_PORT
        try:
            host, port = host_and_port(address, scheme_port)
        except ValueError as error:
            raise unreachable(address, str(error)) from None
        if not tcp_answers(host, port):
            raise unreachable(address, "the connection is refused or times out")
        if not address.startswith("ray://"):
            try:
                require_dashboard(f"http://{host}:{port}")
                return f"http://{host}:{port}"
            except ClusterUnreachableError:
                pass  # Not the dashboard's port: the cluster's own, which knows the dashboard's.
    return _ask_cluster_for_dashboard(address)


def _ask_cluster_for_dashboard(address: str) -> str:
    """Ray's own look-up, which may wait for minutes on what is no cluster; here it may not."""
    from ray.dashboard.utils import get_address_for_submission_client

    outcome: dict[str, Any] = {}

    def look_up() -> None:
        try:
            outcome["url"] = get_address_for_submission_client(address)
        except Exception as error:
            outcome["error"] = error

    thread = threading.Thread(target=look_up, daemon=True)
    with _hidden_variables(ADDRESS_VARIABLES):
        thread.start()
        thread.join(_LOOKUP_TIMEOUT_S)
    if url := outcome.get("url"):
        return str(url)
    raise unreachable(address, str(outcome.get("error", f"no answer within {_LOOKUP_TIMEOUT_S:.0f} s")))


@contextmanager
def _hidden_variables(names: Sequence[str]) -> Iterator[None]:
    kept = {name: os.environ.pop(name) for name in names if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(kept)
