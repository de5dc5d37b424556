"""The Ray cluster that the work runs on: an existing one by address, or one started on this machine for the work."""

from __future__ import annotations

import ctypes
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from itertools import islice
from typing import Any, TypeVar

from cluster import logs, signals
from cluster.artefacts.errors import ClusterUnreachableError, PreemptedError
from cluster.artefacts.private import RAY_NAME, private_directory
from cluster.connecting import connect_to_cluster, host_and_port, named_exactly, tcp_answers
from cluster.failures import TASK_RETRIES, result_of
from cluster.node_watch import cluster_watched
from cluster.ray_internals import loopback_only, own_signal_handlers, shut_down
from cluster.start_directory import START_DIRECTORY_VARIABLE, enter_start_directory

# Read by Ray when it starts; calls would need the import first.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
os.environ.setdefault("RAY_DEDUP_LOGS", "0")
# A task that is submitted without a cluster is an error. Ray would connect to whatever cluster runs on the machine, or
# start one, and end this process a minute after that cluster ends.
os.environ.setdefault("RAY_ENABLE_AUTO_CONNECT", "0")

Item = TypeVar("Item")

STATUS_INTERVAL_S = 1.0
"""The status of running work is asked for after so many seconds without a result."""
CANCEL_S = 5.0
"""Seconds that tasks get to end after they were cancelled."""
_LOCAL_OBJECT_STORE_BYTES = 512 * 1024**2
"""Shards are passed in files, not through the object store, so a local one stays small."""
_ATTEMPTS = 3
"""Ray gives its own processes 30 s to start, which is too short on a machine with much other work."""
_TOO_SLOW = "timed out during startup"
_workers: ContextVar[int | None] = ContextVar("workers", default=None)
"""Limit on the tasks that run at a time, set by the user; None for as many as the cluster can run."""
_start: ContextVar[Callable[[], None] | None] = ContextVar("start", default=None)
"""Connects the cluster of `ray_on_demand`; None where none is to be connected any more."""
_TEMP_PREFIX = "r-"
_SHUTDOWN_S = 5.0
"""Seconds that killed processes have to disappear."""
_PR_SET_CHILD_SUBREAPER = 36


@contextmanager
def ray_runtime(
    address: str | None = None,
    *,
    num_cpus: int | None = None,
    workers: int | None = None,
    **options: Any,
) -> Iterator[None]:
    """Connect to Ray for the time of the block; a cluster that was connected before is used and left alone.

    Args:
        address: a Ray address; None takes `RAY_ADDRESS`, and without that starts a local cluster.
        num_cpus: logical CPUs of the local cluster; None takes `workers`, or counts this machine's. Ignored with an
            address.
        workers: shard tasks that may run at a time, on any cluster; None for one on every CPU.

    Raises:
        ClusterUnreachableError: no cluster at `address` accepts the connection, or a local one does not come up.
    """
    import ray

    if ray.is_initialized():
        with _at_most(workers):
            yield
        return
    target = address or os.environ.get("RAY_ADDRESS")
    quiet: dict[str, Any] = {
        "log_to_driver": False,
        "logging_level": logging.ERROR,
        "configure_logging": True,
    }
    with ExitStack() as held:
        if target and target != "local":
            target = named_exactly(target)
            logs.say(f"connecting to the Ray cluster at {target}")
            own_directory: dict[str, Any] = {}
            if START_DIRECTORY_VARIABLE not in os.environ:
                # Workers start in this process's directory, so that relative paths mean the same there.
                hook = f"{enter_start_directory.__module__}.{enter_start_directory.__name__}"
                variables = {START_DIRECTORY_VARIABLE: os.getcwd()}
                own_directory["runtime_env"] = {"env_vars": variables, "worker_process_setup_hook": hook}
            with own_signal_handlers(), loopback_only() if _is_closed(target) else nullcontext():
                connect_to_cluster(target, **(quiet | own_directory | options))
            held.callback(shut_down)
        else:
            local = {
                "num_cpus": num_cpus or workers,
                "include_dashboard": False,
                "object_store_memory": _LOCAL_OBJECT_STORE_BYTES,
                "_temp_dir": str(held.enter_context(private_directory(_TEMP_PREFIX)) / RAY_NAME),
            }
            logs.say("starting Ray on this machine")
            held.enter_context(_nothing_left())
            with own_signal_handlers(), loopback_only(), signals.kept_from_children():
                _start_here(quiet | local | options)
        held.enter_context(cluster_watched())
        held.enter_context(_at_most(workers))
        yield


@contextmanager
def ray_on_demand(address: str | None = None, *, workers: int | None = None) -> Iterator[None]:
    """As `ray_runtime`, but the first `require_ray` in the block connects: finished work needs no cluster."""
    with ExitStack() as held:

        def start() -> None:
            _start.set(None)
            held.enter_context(ray_runtime(address, workers=workers))

        held.callback(_start.reset, _start.set(start))
        yield


def require_ray() -> None:
    """Connect the cluster of the surrounding `ray_on_demand`, where that has not happened yet."""
    if start := _start.get():
        start()


@contextmanager
def _at_most(workers: int | None) -> Iterator[None]:
    token = _workers.set(workers)
    try:
        yield
    finally:
        _workers.reset(token)


def _is_closed(target: str) -> bool:
    """Whether a cluster answers on loopback addresses only, as the local one does. Ray would look for it at the
    machine's address in the network."""
    import ray

    try:
        host, port = host_and_port(target, 0)
    except ValueError:
        return False
    own = host in ("localhost", "127.0.0.1", "::1")
    return own and tcp_answers(host, port) and not tcp_answers(ray.util.get_node_ip_address(), port)


@contextmanager
def _nothing_left() -> Iterator[None]:
    """End Ray after the block, with every process that it has started."""
    import psutil

    if signals.answers_signals() and sys.platform == "linux":
        # Orphans of Ray's processes become this process's children, and are found.
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    before = set(psutil.Process().children(recursive=True))
    try:
        yield
    finally:
        started = set(psutil.Process().children(recursive=True)) - before
        shut_down()
        started |= set(psutil.Process().children(recursive=True)) - before
        # The process that sends the log has its own session, and ends by itself when all is sent.
        left = [process for process in started if signals.in_this_session(process.pid)]
        for process in left:
            with suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(left, timeout=_SHUTDOWN_S)


def _start_here(options: dict[str, Any]) -> None:
    """Start Ray on this machine, again where it was too slow."""
    import ray
    import tenacity

    retrying = tenacity.Retrying(
        retry=tenacity.retry_if_exception_message(match=f".*{_TOO_SLOW}"),
        stop=tenacity.stop_after_attempt(_ATTEMPTS),
        reraise=True,
    )
    try:
        retrying(ray.init, address="local", **options)
    except Exception as error:
        if _TOO_SLOW not in str(error):
            raise
        raise ClusterUnreachableError(
            f"Ray did not come up on this machine in {_ATTEMPTS} attempts: {error}",
            next_step="see what else keeps the machine busy (`uptime`), then type the same command again",
        ) from error


def in_flight(
    submit: Callable[[Item], Any], items: Iterable[Item], window: int, who: Callable[[Item], str]
) -> Iterator[tuple[Item, Any]]:
    """Submit tasks or calls of actors, at most `window` at a time, and yield each item with its result as it comes;
    every STATUS_INTERVAL_S without a result, an item that is worked on with None.

    Args:
        submit: starts the work on an item in Ray.
        who: names the worker of an item in errors.

    Raises:
        PreemptedError: workers were asked to stop, and all have ended their items.
        ClozeError: as the work raised it.
        WorkersLostError: a process died once more than Ray starts it again.
    """
    import ray

    waiting = iter(items)
    running: dict[Any, Item] = {}
    preempted: PreemptedError | None = None
    try:
        while True:
            running.update((submit(item), item) for item in islice(waiting, window - len(running)))
            if not running:
                break
            ready, _ = ray.wait(list(running), num_returns=1, timeout=STATUS_INTERVAL_S)
            if not ready:
                yield next(iter(running.values())), None
                continue
            item = running.pop(ready[0])
            try:
                result = result_of(ready[0], who(item))
            except PreemptedError as error:
                # The others are also about to save what they have.
                preempted, waiting = error, iter(())
                continue
            yield item, result
        if preempted is not None:
            raise preempted
    finally:
        # Tasks end with a program that a signal ends; Ray may abort it where one is cancelled as it ends by itself.
        if running and not signals.received():
            for reference in running:
                ray.cancel(reference)
            # Otherwise they might still write where the same work is tried again.
            ray.wait(list(running), num_returns=len(running), timeout=CANCEL_S)


def run_tasks(
    function: Callable[..., Any],
    items: Iterable[Item],
    arguments: Callable[[Item], tuple[Any, ...]],
    who: Callable[[Item], str],
    *,
    num_cpus: float = 1.0,
) -> Iterator[tuple[Item, Any]]:
    """Run `function(*arguments(item))` in a Ray task for every item, `tasks_in_flight` at a time, and yield and raise
    as `in_flight` does."""
    import ray

    remote = ray.remote(num_cpus=num_cpus, max_retries=TASK_RETRIES)(function)
    return in_flight(lambda item: remote.remote(*arguments(item)), items, tasks_in_flight(), who)


def tasks_in_flight() -> int:
    """Tasks to submit at a time: two for every CPU, so that no CPU waits for the driver, or the user's limit."""
    import ray

    return _workers.get() or 2 * max(1, int(ray.cluster_resources().get("CPU", 1)))


def node_cpus() -> int:
    """CPUs of the node with the most CPUs: the most that one task can get."""
    import ray

    offered = max(1, *(int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]))
    return min(offered, _workers.get() or offered)
