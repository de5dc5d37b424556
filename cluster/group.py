"""A group of training workers on Ray: one actor for each rank, started together and started again together.

`failures.py` has the table of what follows when a start fails. A ClozeError that a rank raised is raised at once.
Progress in between renews the counts of restarts; the ranks resume by themselves.

A step is a fixed list of micro-batches, so only some numbers of workers can share it out. A group moves when its
cluster grows, shrinks or drains nodes; it saves first, like one that is stopped.
"""

from __future__ import annotations

import math
import os
import socket
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple

from cluster.artefacts.errors import ClozeError, ConfigError, PreemptedError, WorkersLostError
from cluster.artefacts.owner import repeated
from cluster.collectives import GROUP_TIMEOUT_S
from cluster.failures import Failure, error_of, failure_of
from cluster.ray_internals import draining_nodes, free_resources_by_node
from cluster.stopping import StopFile

MOVE = "move: "
"""Prefix of the reasons of stop requests that make the group start again by itself."""
_REPORT_EVERY_S = 60.0
_LOOPBACK = "127.0.0.1"
_POLL_S = 1.0
_GATHER_S = 4.0
"""Seconds that the other ranks have, after the first failure, to fail too: their errors say who died first."""


@dataclass(frozen=True, slots=True)
class GroupSize:
    """Numbers of workers of a training group, and the resources of each."""

    choices: tuple[int, ...]
    """Numbers of workers that will do, the largest first; a single one fixes the size."""
    cpus_per_worker: int
    gpus_per_worker: int


@dataclass(frozen=True, slots=True)
class Rank:
    """Rank of this process in its group, and the resources of one worker."""

    rank: int
    world_size: int
    local_rank: int
    """Index of the worker on its machine; chooses the GPU."""
    num_threads: int
    """CPU threads that this worker may use."""


class GroupFailure(Exception):
    """Ranks raised, or were lost."""

    def __init__(self, errors: Mapping[int, BaseException]) -> None:
        lines = [
            "\n".join([f"rank {rank}: {type(error).__name__}: {error}", *getattr(error, "__notes__", ())])
            for rank, error in sorted(errors.items())
        ]
        super().__init__("\n".join(lines))
        self.errors = dict(errors)
        """By rank, the exception that it raised, or Ray's error if it was lost."""


def run_group(
    function: Callable[[Any, Rank], None],
    argument: Any,
    size: GroupSize,
    *,
    limits: Mapping[Failure, float],
    stop: StopFile,
    next_step: str,
    environment: Mapping[str, str] | None = None,
    on_end: Callable[[GroupFailure | str], bool] = lambda reason: False,
    resize_interval_s: float = 60.0,
) -> None:
    """Run `function(argument, rank)` on every worker of a group until all return, starting it again after failures.

    Every start takes as many workers as `size` and the cluster allow. A group is asked to save and to move when one of
    its nodes is drained, or when it can grow. Needs a connected Ray cluster.

    Args:
        limits: by class of failure, restarts without progress (`failures.restarts`).
        stop: the request that the ranks look at; this process also uses it to ask them to move.
        next_step: the command that continues, for the error's message.
        environment: variables for all workers; they may hold secrets.
        on_end: called before the group starts again, or is given up, with the GroupFailure or the reason of a move;
            returns whether the run made progress since the last failure, so that the restarts begin to count again.
        resize_interval_s: seconds between two looks for room to grow.

    Raises:
        ConfigError: the cluster is too small.
        ClozeError: a worker raised it.
        PreemptedError: the group failed after it was asked to stop.
        WorkersLostError: from the last GroupFailure.
    """
    require_resources(size)
    spent: Counter[Failure] = Counter()
    while True:
        try:
            with (
                _workers_of(size, environment or {}) as (workers, workers_by_node),
                watching_cluster(size, workers_by_node, stop, interval_s=resize_interval_s),
            ):
                _results([actor.run.remote(function, argument, rank, own) for actor, rank, own in workers])
            return
        except PreemptedError:
            # SIGTERM's reason replaces the reason of a move.
            if not stop.reason.startswith(MOVE):
                raise
            on_end(stop.take().removeprefix(MOVE))
            continue
        except GroupFailure as error:
            failure = error
        if on_end(failure):
            spent.clear()
        if stop.reason.startswith(MOVE):
            stop.take()
        elif stop.requested():
            raise PreemptedError(
                f"The workers ended before they had saved; asked to stop: {stop.reason}.",
                kept="all committed checkpoints",
                next_step=next_step,
            ) from failure
        kind = failure_of(failure.errors.values())
        if spent[kind] >= limits[kind]:
            raise WorkersLostError(
                f"The workers failed and {spent.total()} restarts did not help: {failure}",
                kept="all committed checkpoints",
                next_step=f"find the cause in the log of the worker, then: {next_step}",
            ) from failure
        spent[kind] += 1


@contextmanager
def _workers_of(
    size: GroupSize, environment: Mapping[str, str]
) -> Iterator[tuple[list[tuple[Any, Rank, dict[str, str]]], dict[str, int]]]:
    """Start the actors of a group, and end them after the block.

    Yields:
        By rank, the actor with its rank and its environment; and by node, the number of workers.
    """
    import ray
    from ray.util.placement_group import placement_group, remove_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    world_size = choose_workers(size)
    resources = {"CPU": size.cpus_per_worker, "GPU": size.gpus_per_worker}
    room = placement_group([{name: count for name, count in resources.items() if count}] * world_size)
    actors: list[Any] = []
    try:
        # In short waits: signals are handled between them.
        while not room.wait(_POLL_S):
            pass
        remote: Any = ray.remote(num_cpus=size.cpus_per_worker, num_gpus=size.gpus_per_worker)(_Worker)  # pyright: ignore[reportCallIssue]
        for bundle in range(world_size):
            place = PlacementGroupSchedulingStrategy(room, placement_group_bundle_index=bundle)
            actors.append(remote.options(scheduling_strategy=place).remote())
        seats: list[_Seat] = _results([actor.take_seat.remote() for actor in actors])
        # Workers of a node follow each other, in the order of their GPUs.
        on_node: dict[str, list[int]] = {}
        for index, seat in enumerate(seats):
            on_node.setdefault(seat.node, []).append(index)
        for members in on_node.values():
            members.sort(key=lambda index: [int(gpu) if gpu.isdigit() else gpu for gpu in seats[index].gpus])
        order = [index for members in on_node.values() for index in members]
        master = seats[order[0]]
        workers = []
        for rank, index in enumerate(order):
            node = on_node[seats[index].node]
            local_rank = node.index(index)
            variables = {
                **worker_environment(size),
                **environment,
                "MASTER_ADDR": master.host,
                "MASTER_PORT": str(master.port),
                "RANK": str(rank),
                "WORLD_SIZE": str(world_size),
                "LOCAL_RANK": str(local_rank),
                "LOCAL_WORLD_SIZE": str(len(node)),
            }
            if size.gpus_per_worker:
                # Every worker sees the GPUs of all workers on its node, and takes the one of its local rank.
                variables["CUDA_VISIBLE_DEVICES"] = ",".join(gpu for one in node for gpu in seats[one].gpus)
            own = Rank(rank, world_size, local_rank, size.cpus_per_worker)
            workers.append((actors[index], own, variables))
        yield workers, {node: len(members) for node, members in on_node.items()}
    finally:
        for actor in actors:
            ray.kill(actor)
        remove_placement_group(room)


def worker_environment(size: GroupSize) -> dict[str, str]:
    """Environment of every worker: threads wait passively, because spinning starves the machine's other workers."""
    threads = str(size.cpus_per_worker)
    environment = {
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "OMP_WAIT_POLICY": "PASSIVE",
        "TOKENIZERS_PARALLELISM": "false",
    }
    return environment if size.gpus_per_worker else {**environment, "DS_ACCELERATOR": "cpu"}


def require_resources(size: GroupSize) -> None:
    """Refuse a group that is too large for the connected cluster: Ray would wait for it without end. A group that may
    be smaller waits for room, because the cluster may grow.

    Raises:
        ConfigError: names the resources that are needed, and what the cluster has.
    """
    import ray

    workers, *smaller = size.choices
    if smaller:
        return
    have = ray.cluster_resources()
    need = {"CPU": workers * size.cpus_per_worker, "GPU": workers * size.gpus_per_worker}
    short = [
        f"{count} {kind}s, the cluster has {have.get(kind, 0):g}"
        for kind, count in need.items()
        if count > have.get(kind, 0)
    ]
    if short:
        raise ConfigError(
            f"{workers} workers need {'; '.join(short)}.",
            next_step="lower cluster.workers or cluster.cpus_per_worker, or add nodes to the cluster",
        )


def choose_workers(size: GroupSize) -> int:
    """The largest number of workers of `size` that the cluster has room for now; waits until it has room for one of
    them. A group of a fixed size is left to Ray, which waits for its resources by itself."""
    if len(size.choices) == 1:
        return size.choices[0]
    reported_s, room = float("-inf"), free_workers(size)
    while True:
        time.sleep(_POLL_S)
        # The resources of processes that have just ended come back one by one.
        before, room = room, free_workers(size)
        found = largest_fitting(size, room)
        if found is not None and before == room:
            return found
        if found is None and time.monotonic() - reported_s >= _REPORT_EVERY_S:
            reported_s = time.monotonic()
            print(
                f"waiting for room for {min(size.choices)} workers; there is room for {room}", file=sys.stderr
            )


def largest_fitting(size: GroupSize, room: int) -> int | None:
    """The largest allowed number of workers that fits; None if none does."""
    return max((count for count in size.choices if count <= room), default=None)


def free_workers(size: GroupSize) -> int:
    """Workers that the free resources of all nodes but drained ones can hold."""
    drained = draining_nodes()
    needed = {"CPU": size.cpus_per_worker, "GPU": size.gpus_per_worker}
    return sum(
        min(int(resources.get(name, 0) // count) for name, count in needed.items() if count)
        for node, resources in free_resources_by_node().items()
        if node not in drained
    )


def reason_to_leave(running: Collection[str]) -> str | None:
    """Why a group on these nodes should save and start elsewhere: some of them are drained."""
    import ray

    drained = draining_nodes()
    if not (leaving := sorted(node for node in running if node in drained)):
        return None
    addresses = {each["NodeID"]: each["NodeManagerAddress"] for each in ray.nodes()}
    return f"{MOVE}{', '.join(addresses.get(node, node) for node in leaving)} is drained"


def reason_to_grow(size: GroupSize, workers: int) -> str | None:
    """Why a running group of so many workers should save and start again: there is room for more."""
    if len(size.choices) == 1:
        return None
    fitting = largest_fitting(size, workers + free_workers(size))
    return f"{MOVE}from {workers} to {fitting} workers" if fitting is not None and fitting > workers else None


@contextmanager
def watching_cluster(
    size: GroupSize, running: Mapping[str, int], stop: StopFile, *, interval_s: float
) -> Iterator[None]:
    """While the block runs, ask a group to save and move when a node of it is drained, or when it can grow.

    Args:
        running: by node, the workers of the group.
        interval_s: seconds between two looks for room.
    """

    def ask(reason: str | None) -> None:
        if reason is not None and not stop.requested():
            stop.request(reason)

    workers = sum(running.values())
    with (
        repeated(lambda: ask(reason_to_leave(running)), _POLL_S, name="drain-watch"),
        repeated(lambda: ask(reason_to_grow(size, workers)), max(interval_s, _POLL_S), name="room-watch"),
    ):
        yield


class _Seat(NamedTuple):
    """The place of a worker's process."""

    node: str
    host: str
    port: int
    """Port for the group's store."""
    gpus: tuple[str, ...]


class _Worker:
    """The actor of one rank."""

    def take_seat(self) -> _Seat:
        import ray

        # On the node's own address only, as Ray itself: torch's store would listen on all, without a password.
        host = ray.util.get_node_ip_address()
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, 0), family=family, backlog=4096)
        context = ray.get_runtime_context()
        gpus = tuple(context.get_accelerator_ids().get("GPU", ()))
        return _Seat(context.get_node_id(), host, self._listener.getsockname()[1], gpus)

    def run(
        self,
        function: Callable[[Any, Rank], None],
        argument: Any,
        rank: Rank,
        environment: Mapping[str, str],
    ) -> None:
        # Before torch is imported, which reads some of it.
        os.environ |= environment
        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        if host == _LOOPBACK:
            os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
        try:
            import torch.distributed as dist

            timeout = timedelta(seconds=GROUP_TIMEOUT_S)
            is_first = rank.rank == 0
            if not is_first:
                self._listener.close()
            # A worker without a GPU of its own is kept off the GPUs of its machine.
            backend = "gloo" if os.environ.get("DS_ACCELERATOR") == "cpu" else "nccl"
            store = dist.TCPStore(  # pyright: ignore[reportPrivateImportUsage]
                host,
                port,
                is_master=is_first,
                wait_for_workers=False,
                timeout=timeout,
                master_listen_fd=self._listener.detach() if is_first else None,
            )
            dist.init_process_group(
                backend, store=store, rank=rank.rank, world_size=rank.world_size, timeout=timeout
            )
            function(argument, rank)
        except ClozeError as error:
            # If all ranks raise an error, only rank 0 reports it to the driver: it ends last, because it sends the rest
            # of the log.
            if not error.everywhere or rank.rank == 0:
                raise
        except Exception as error:
            error.add_note(traceback.format_exc())
            raise


def _results(calls: Sequence[Any]) -> list[Any]:
    """The results of one call of every worker, in the order of ranks.

    Raises:
        ClozeError: a worker raised it.
        GroupFailure: workers failed; the others get a moment to fail too.
    """
    import ray

    waiting, errors = list(calls), dict[int, BaseException]()
    deadline_s = math.inf
    while waiting and time.monotonic() < deadline_s:
        ready, waiting = ray.wait(waiting, timeout=_POLL_S)
        for call in ready:
            if (error := error_of(call)) is None:
                continue
            if isinstance(error, ClozeError):
                raise error
            errors[calls.index(call)] = error
            deadline_s = min(deadline_s, time.monotonic() + _GATHER_S)
    if errors:
        raise GroupFailure(errors)
    return ray.get(list(calls))
