"""Trainings at the same time, each in a Ray worker with GPUs or CPU threads of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from accelerate import Accelerator

from cluster.artefacts.errors import ConfigError
from cluster.progress import Advance
from cluster.runtime import ray_runtime
from cluster.stopping import StopFile
from cluster.worker_pool import run_pool
from pipeline.run.tracking import start_run
from pipeline.tune.processes import make_accelerator
from pipeline.tune.runner import StartRun, TrialRunner, end_tracked_runs, ended_as, stopping
from pipeline.tune.scores import IN_PROGRESS, Trial, TrialRecord
from pipeline.tune.trials import Trials


def train_side_by_side(
    accelerator: Accelerator,
    trials: Trials,
    workspace: Path,
    missing: Sequence[Trial],
    track: StartRun,
    num_updates: Mapping[str, int],
    advance: Advance,
) -> dict[str, TrialRecord]:
    """Run the missing trials on the Ray cluster at `RAY_ADDRESS`, or on one that is started on this machine.

    All nodes see the workspace, the checkpoint and the tracking store under the same paths. A worker that dies is
    started again, and its training goes on after its last saved update.

    Args:
        num_updates: of each trial, by its name.

    Returns:
        Records by name of the trial.

    Raises:
        ConfigError: several processes were launched, each of which would start all trainings.
        PreemptedError: SIGTERM asked for a stop, and all trainings have saved.
        ClozeError: as a training raised it; the others stop, and go on with the next start.
    """
    import ray

    if accelerator.num_processes > 1:
        raise ConfigError(
            f"side_by_side starts trainings by itself, but {accelerator.num_processes} processes were launched.",
            next_step="start one process, or set side_by_side=1 to share each training among the processes",
        )
    records: dict[str, TrialRecord] = {}
    config, threads = trials.config, trials.config.num_threads or 1
    with ray_runtime():
        try:
            with stopping(workspace, clears=True):
                resources = ray.cluster_resources()
                cpus, gpus = int(resources.get("CPU", 1)), int(resources.get("GPU", 0))
                cpus_of_each = 1 if gpus else min(threads, cpus)
                pool = run_pool(
                    partial(TrialWorker, trials, workspace.resolve(), track, cpus_of_each),
                    missing,
                    num_workers=config.side_by_side or gpus or max(1, cpus // threads),
                    num_cpus=cpus_of_each,
                    num_gpus=1 if gpus else 0,
                )
                for trial, record, shown in pool:
                    if record is None:
                        advance(0, shown)
                    else:
                        records[trial.name] = record
                        advance(num_updates[trial.name], f"{trial.name} done")
        except BaseException as error:
            # Workers that were killed could not end their MLflow runs.
            if track is start_run:
                end_tracked_runs(trials, workspace, missing, ended_as(error))
            raise
    return records


class TrialWorker:
    """A worker of the pool: encodes tasks and reads weights once, for all of its trainings."""

    def __init__(self, trials: Trials, workspace: Path, track: StartRun, num_threads: int) -> None:
        self._num_threads = num_threads
        self._request = StopFile(workspace / IN_PROGRESS)
        config = trials.config.model_copy(update={"num_threads": num_threads})
        self._runner = TrialRunner(make_accelerator(config), trials, workspace, track)
        self._shown = ""

    def work(self, trial: Trial) -> TrialRecord:
        """Run one training."""
        import torch

        def show(updates: int, shown: str) -> None:
            self._shown = shown

        # OpenMP counts its threads for each calling thread, and Ray calls from more than one.
        torch.set_num_threads(self._num_threads)
        return self._runner.run(trial, show, self._request)

    def progress(self) -> str:
        """The training's last line."""
        return self._shown
