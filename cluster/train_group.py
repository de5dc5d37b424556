"""A group of training workers under Ray Train: started together, restarted together when one is lost."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cluster import signals
from cluster.artefacts.errors import ClozeError, ConfigError, WorkersLostError
from cluster.elastic import choose_workers
from cluster.failure_budget import FailureBudget, errors_by_rank
from cluster.group_size import GroupSize
from cluster.imports import uncollected
from cluster.ray_internals import started_here

PRELOAD = ("cluster.group_trainer",)
"""Modules that the processes of every group import, its controller too; for `ray_runtime`."""


@dataclass(frozen=True, slots=True)
class Rank:
    """Rank of this process in its group, and the resources of one worker."""

    rank: int
    world_size: int
    local_rank: int
    """Number of the worker on its machine; chooses the GPU."""
    num_threads: int
    """CPU threads that this worker may use."""


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
    """Refuse a group that is too large for the connected cluster, for which Ray would wait without end. One that may be
    smaller waits for its room: the cluster may grow.

    Raises:
        ConfigError: names the resources that are needed, and what the cluster has.
    """
    import ray

    if size.smaller:
        return
    have = ray.cluster_resources()
    need = {"CPU": size.workers * size.cpus_per_worker, "GPU": size.workers * size.gpus_per_worker}
    short = [
        f"{count} {kind}s, the cluster has {have.get(kind, 0):g}"
        for kind, count in need.items()
        if count > have.get(kind, 0)
    ]
    if short:
        raise ConfigError(
            f"{size.workers} workers need {'; '.join(short)}.",
            next_step="lower cluster.workers or cluster.cpus_per_worker, or add nodes to the cluster",
        )


def run_group(
    function: Callable[[Mapping[str, Any], Rank], None],
    argument: Mapping[str, Any],
    size: GroupSize,
    *,
    name: str,
    storage: Path,
    budget: FailureBudget,
    next_step: str,
    environment: Mapping[str, str] | None = None,
    on_failure: Callable[[Exception], None] = lambda failure: None,
) -> None:
    """Run `function(argument, rank)` on every worker of a group until all return.

    When a worker dies, or raises, all are stopped and the whole group is started again as often as `budget` allows;
    `function` must resume by itself. A ClozeError ends the group without a restart. SIGTERM to this process is handled
    by `stopping.py`. Every start takes as many workers as `size` and the cluster allow. Needs a connected Ray cluster.

    Args:
        storage: directory that all machines share.
        next_step: the command that continues, for the error's message.
        environment: variables for all workers that may hold secrets; Ray's dashboard does not show them.
        on_failure: called with Ray Train's error of every group that failed without a ClozeError; see `errors_by_rank`.

    Raises:
        ConfigError: the cluster is too small.
        ClozeError: a worker raised it.
        WorkersLostError: workers kept dying.
    """
    require_resources(size)
    while True:
        chosen = replace(size, workers=choose_workers(size))
        failure = _run_once(function, argument, chosen, name, storage.resolve(), environment or {})
        if failure is None:
            return
        if raised := [error for error in errors_by_rank(failure).values() if isinstance(error, ClozeError)]:
            raise raised[0]
        on_failure(failure)
        if not budget.spend(failure):
            raise WorkersLostError(
                f"The workers failed and {sum(budget.spent.values())} restarts did not help: {failure}",
                kept="all committed checkpoints",
                next_step=f"find the cause in the log of the worker, then: {next_step}",
            ) from failure


def _run_once(
    function: Callable[[Mapping[str, Any], Rank], None],
    argument: Mapping[str, Any],
    size: GroupSize,
    name: str,
    storage: Path,
    environment: Mapping[str, str],
) -> Exception | None:
    """Start the group once; returns Ray Train's error if it failed.

    Ray Train's own restarts are not used: Ray Train gives a run up, with restarts left, when a worker dies while it
    receives the function.
    """
    with uncollected():
        import ray
        from ray.train import FailureConfig, RunConfig, ScalingConfig
        from ray.train.v2.api.exceptions import TrainingFailedError

        from cluster.group_trainer import GroupTrainer, OwnTrainer
        from cluster.process_group import OwnAddressConfig

    make_trainer = OwnTrainer if started_here() else GroupTrainer
    trainer = make_trainer(
        _worker_main,
        train_loop_config={
            # By reference, here and below: Ray Train's controller need not import what the workers run.
            "function": [ray.put(function)],
            "argument": dict(argument),
            "threads": size.cpus_per_worker,
            # Ray's dashboard shows the arguments of a group.
            "environment": [ray.put(dict(environment))],
        },
        # Variables that a runtime environment would set need a process that is started for them.
        backend_config=OwnAddressConfig(
            backend="nccl" if size.gpus_per_worker else "gloo", environment=worker_environment(size)
        ),
        scaling_config=ScalingConfig(
            num_workers=size.workers,
            use_gpu=bool(size.gpus_per_worker),
            resources_per_worker={"CPU": size.cpus_per_worker, "GPU": size.gpus_per_worker},
        ),
        run_config=RunConfig(
            name=name,
            storage_path=str(storage),
            failure_config=FailureConfig(max_failures=0, max_preemption_failures=0),
        ),
    )
    on_interrupt = signal.getsignal(signal.SIGINT)
    others = _placement_groups()
    try:
        trainer.fit()
    except TrainingFailedError as error:
        return error
    except SystemExit as ended:
        # Ray Train turns Ctrl-C into SystemExit. Its handler would stay, and end the program later without a message.
        signals.note(signal.SIGINT)
        raise KeyboardInterrupt from ended
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, on_interrupt)
        _release(_placement_groups() - others)
    return None


def _placement_groups() -> set[str]:
    """Ids of the placement groups that this job holds."""
    import ray
    from ray.util import placement_group_table

    # An id ends with the id of the job which made the group.
    job = ray.get_runtime_context().get_job_id()
    return {
        number
        for number, group in placement_group_table().items()
        if number.endswith(job) and group["state"] != "REMOVED"
    }


def _release(placement_groups: set[str]) -> None:
    """Release the placement groups of an ended group. After Ctrl-C Ray Train leaves that to one of its actors, which
    fails where it sees more than one cluster on a machine; the next group would wait without end."""
    from ray import PlacementGroupID
    from ray.util import remove_placement_group
    from ray.util.placement_group import PlacementGroup

    for number in sorted(placement_groups):
        remove_placement_group(PlacementGroup(PlacementGroupID(bytes.fromhex(number))))


def _worker_main(loop: Mapping[str, Any]) -> None:
    import ray.train

    os.environ |= ray.get(loop["environment"][0])
    function: Any = ray.get(loop["function"][0])
    context = ray.train.get_context()
    rank = Rank(
        rank=context.get_world_rank(),
        world_size=context.get_world_size(),
        local_rank=context.get_local_rank(),
        num_threads=loop["threads"],
    )
    try:
        function(loop["argument"], rank)
    except ClozeError as error:
        # On an error Ray Train stops all workers. Of one that all ranks raise it hears from rank 0 alone, which ends
        # last: it sends the rest of the log.
        if not error.everywhere or rank.rank == 0:
            raise


def rank_from_environment() -> Rank:
    """The rank as `torchrun` sets it; a process that it did not start is a group of one."""
    return Rank(
        rank=int(os.environ.get("RANK", "0")),
        world_size=int(os.environ.get("WORLD_SIZE", "1")),
        local_rank=int(os.environ.get("LOCAL_RANK", "0")),
        num_threads=int(os.environ.get("OMP_NUM_THREADS", "1")),
    )
