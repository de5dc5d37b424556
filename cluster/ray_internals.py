"""All uses of Ray's private names: functions that are replaced for the length of a call, each with its reason.

A test has the list of these names, and fails with those that an update of Ray removed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from cluster import signals


@contextmanager
def own_signal_handlers() -> Iterator[None]:
    """Keep the process's signal handlers during `ray.init`, whose own SIGTERM handlers exit with another exit code, and
    print a stack of Ray's C++ part."""
    from ray._private import utils

    before, utils.set_sigterm_handler = utils.set_sigterm_handler, lambda handler: None
    try:
        yield
    finally:
        utils.set_sigterm_handler = before
    signals.renew()
    if signals.received():
        # Ray starts processes, and an exception raised in the callbacks of a fork is lost.
        raise signals.Interrupted


@contextmanager
def loopback_only() -> Iterator[None]:
    """Let the processes that `ray.init` starts listen on loopback addresses only.

    Ray has this for macOS and Windows, by an environment variable that is read when Ray is imported.
    """
    from ray._private import ray_constants

    before, ray_constants.ENABLE_RAY_CLUSTER = ray_constants.ENABLE_RAY_CLUSTER, False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


def shut_down() -> None:
    """`ray.shutdown`, with signal handlers that stay, and SIGKILL for the processes that this one started.

    Ray's C++ part resets the handlers during the shutdown, before it waits for processes to end. SIGTERM is blocked in
    them, and Ray would wait for each.
    """
    import ray
    from ray._private import worker

    node = worker._global_node
    if node is not None:
        kill_all_processes = node.kill_all_processes

        def with_handlers(*given: Any, **options: Any) -> None:
            signals.renew()
            kill_all_processes(*given, **options | {"allow_graceful": False})

        node.kill_all_processes = with_handlers
    ray.shutdown()
    signals.renew()


def dashboard_of(address: str) -> str:
    """URL of the dashboard of the cluster at `HOST:6379`, `ray://HOST:10001` or `auto`; may block for minutes."""
    from ray.dashboard.utils import get_address_for_submission_client

    return get_address_for_submission_client(address)


def automatic_address() -> str:
    """`HOST:PORT` of the cluster that Ray means by `auto`, as it listens; raises ConnectionError where there is none.

    `ray.init("auto")` would look at the machine's address in the network for a cluster that listens on loopback only.
    """
    from ray._private.services import get_ray_address_from_environment

    return get_ray_address_from_environment("auto", None)


def node_summaries(client: Any, timeout_s: float) -> list[dict[str, Any]]:
    """The nodes of a cluster with their load, as the dashboard's own page gets them: no public call has the load.

    Args:
        client: a `JobSubmissionClient`, which knows address and token.
    """
    answer = client._do_request("GET", "/nodes?view=summary", timeout=timeout_s)
    answer.raise_for_status()
    return answer.json()["data"]["summary"]


def own_raylet_socket() -> str | None:
    """The socket of the node process that this driver is connected to; None through Ray's client, which has none."""
    from ray._private import worker

    return None if worker._global_node is None else worker._global_node.raylet_socket_name


def draining_nodes() -> dict[str, int]:
    """Deadlines of nodes that are being drained, by node id: milliseconds of Unix time, 0 for none."""
    from ray._private.state import state

    return dict(state.get_draining_nodes() or {})


def free_resources_by_node() -> dict[str, dict[str, float]]:
    """Resources that no task or actor holds, by node id; Ray's public function adds all nodes up."""
    from ray._private.state import available_resources_per_node

    return {node: dict(resources) for node, resources in available_resources_per_node().items()}
