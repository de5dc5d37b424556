"""All uses of Ray's undocumented names: functions that are replaced for the length of a call, each with its reason.

A test has the list of these names, and fails with those that an update of Ray removed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from cluster import signals
from cluster.node_load import GpuLoad, NodeLoad

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient

JOB_VARIABLE = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""Ray sets it in the processes of a job: JSON with the job's id in `metadata`."""
LOOPBACK_VARIABLE = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""At 0, Ray listens on loopback addresses only, and accepts 127.0.0.1 as a node's address."""
RECONNECT_VARIABLE = "RAY_gcs_rpc_server_reconnect_timeout_s"
"""Seconds that Ray lets a head be away, which may come back where its state is kept in Redis."""
NODE_PROCESS = "raylet"


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


def node_loads(client: JobSubmissionClient, timeout_s: float) -> list[NodeLoad]:
    """Load of a cluster's nodes, as the dashboard's own page gets it: no public call has it."""
    answer = client._do_request("GET", "/nodes?view=summary", timeout=timeout_s)
    answer.raise_for_status()
    return [_of_summary(summary) for summary in answer.json()["data"]["summary"]]


def _of_summary(summary: Mapping[str, Any]) -> NodeLoad:
    raylet = summary.get("raylet") or {}
    # (total, available, percent, used); load averages of 1, 5 and 15 minutes, of the machine and by processor.
    memory, load = summary.get("mem") or (), summary.get("loadAvg") or ()
    cpu, disk = summary.get("cpu"), (summary.get("disk") or {}).get("/") or {}
    return NodeLoad(
        name=str(summary.get("hostname") or raylet.get("nodeManagerHostname") or raylet.get("nodeId") or "?"),
        cpu_ratio=None if cpu is None else cpu / 100,
        load_average=load[0][0] if load else None,
        memory_bytes=memory[3] if memory else None,
        memory_ratio=memory[2] / 100 if memory else None,
        disk_free_bytes=disk.get("free"),
        gpus=tuple(_of_gpu(gpu) for gpu in summary.get("gpus") or ()),
        is_alive=raylet.get("state") == "ALIVE",
    )


def _of_gpu(gpu: Mapping[str, Any]) -> GpuLoad:
    used, total, busy, power = (
        gpu.get(key) for key in ("memoryUsed", "memoryTotal", "utilizationGpu", "powerMw")
    )
    return GpuLoad(
        number=int(gpu.get("index", 0)),
        ratio=None if busy is None else busy / 100,
        memory_bytes=None if used is None else used * 2**20,
        memory_ratio=used / total if used is not None and total else None,
        power_watts=None if power is None else power / 1000,
    )


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
