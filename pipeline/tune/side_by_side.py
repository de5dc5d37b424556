"""Trainings side by side: one at a time in each of several Ray workers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import ray
import torch
from ray.exceptions import RayError

from cluster.failures import TASK_RETRIES
from cluster.progress import Advance
from cluster.runtime import STATUS_INTERVAL_S, in_flight, ray_runtime
from cluster.stopping import StopFile
from pipeline.tune.learner import make_accelerator
from pipeline.tune.runner import TrialRunner, end_tracked_runs, ended_as, stopping
from pipeline.tune.scores import IN_PROGRESS, Trial, TrialRecord
from pipeline.tune.trials import Trials


def train_side_by_side(
    trials: Trials,
    workspace: Path,
    missing: Sequence[Trial],
    num_updates: Mapping[str, int],
    advance: Advance,
) -> dict[str, TrialRecord]:
    """Run the missing trials on the Ray cluster at `RAY_ADDRESS`, or on one that is started on this machine.

    All nodes see the workspace, the checkpoint and the tracking store under the same paths. A worker that dies is
    started again, and its training continues after its last saved update.

    Args:
        num_updates: of each trial, by its name.

    Returns:
        Records by name of the trial.

    Raises:
        PreemptedError: SIGTERM asked for a stop, and all trainings have saved.
        ClozeError: as a training raised it; the others stop, and continue with the next start.
    """
    threads = trials.config.num_threads or 1
    with ray_runtime():
        try:
            with stopping(workspace, clears=True):
                resources = ray.cluster_resources()
                cpus, gpus = int(resources.get("CPU", 1)), int(resources.get("GPU", 0))
                num_cpus = 1 if gpus else min(threads, cpus)
                # Ray's own types know no numbers that are not written out. Workers are asked for their progress while
                # they work.
                remote: Any = ray.remote(  # pyright: ignore[reportCallIssue]
                    num_cpus=num_cpus,
                    num_gpus=1 if gpus else 0,
                    max_restarts=TASK_RETRIES,
                    max_task_retries=TASK_RETRIES,
                    max_concurrency=2,
                )(TrialWorker)
                at_once = trials.config.side_by_side or gpus or max(1, cpus // threads)
                workers = [remote.remote() for _ in range(min(len(missing), at_once))]
                # By reference, and not for the constructor: Ray would warn that it cannot start an actor again.
                shared = [ray.put((trials, workspace.resolve(), num_cpus))]
                return _share_out(workers, shared, missing, num_updates, advance)
        except BaseException as error:
            # Workers that were killed could not end their MLflow runs.
            end_tracked_runs(trials, workspace, missing, ended_as(error))
            raise


def _share_out(
    workers: Sequence[Any],
    shared: Sequence[Any],
    missing: Sequence[Trial],
    num_updates: Mapping[str, int],
    advance: Advance,
) -> dict[str, TrialRecord]:
    """Give every worker one trial after the other; the workers are killed afterwards."""
    idle = list(workers)
    working: dict[Trial, Any] = {}
    records: dict[str, TrialRecord] = {}
    counted: Counter[str] = Counter()

    def submit(trial: Trial) -> Any:
        working[trial] = worker = idle.pop()
        return worker.work.remote(shared, trial)

    try:
        for trial, record in in_flight(submit, missing, len(workers), "The worker of {}".format):
            if record is not None:
                idle.append(working.pop(trial))
                records[trial.name] = record
                advance(num_updates[trial.name] - counted[trial.name], f"{trial.name} done")
                continue
            shown = ""
            for other, worker in working.items():
                with suppress(RayError):  # still starting, or being started again
                    name, updates, text = ray.get(worker.progress.remote(), timeout=STATUS_INTERVAL_S)
                    shown = shown or text
                    # A worker that was started again repeats what it had not saved.
                    if name == other.name and (new := updates - counted[name]) > 0:
                        counted[name] = updates
                        advance(new, text)
            advance(0, shown)
    finally:
        for worker in workers:
            ray.kill(worker)
    return records


class TrialWorker:
    """An actor that runs one training at a time; it encodes tasks and reads weights once, for all of its trainings."""

    def __init__(self) -> None:
        self._runner: TrialRunner | None = None
        self._progress = ("", 0, "")

    def work(self, shared: Sequence[Any], trial: Trial) -> TrialRecord:
        """Run one training. It is begun again after a crash."""

        def show(updates: int, shown: str) -> None:
            self._progress = (trial.name, self._progress[1] + updates, shown)

        self._progress = (trial.name, 0, "")

        trials, workspace, num_threads = ray.get(shared[0])
        if self._runner is None:
            config = trials.config.model_copy(update={"num_threads": num_threads})
            self._runner = TrialRunner(make_accelerator(config), trials, workspace)
        # OpenMP counts its threads for each calling thread, and Ray calls from more than one.
        torch.set_num_threads(num_threads)
        return self._runner.run(trial, show, StopFile(workspace / IN_PROGRESS))

    def progress(self) -> tuple[str, int, str]:
        """Name of the trial, its updates so far and its last line; another thread asks for them."""
        return self._progress
