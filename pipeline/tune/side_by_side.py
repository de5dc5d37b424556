"""Trainings at the same time, each in a Ray worker with GPUs or CPU threads of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from accelerate import Accelerator

from cluster.artefacts.errors import ConfigError
from cluster.progress import Advance
from cluster.runtime import ray_runtime
from cluster.stopping import StopFile
from cluster.worker_pool import run_pool
from pipeline.run.tracking import start_run
from pipeline.tune.config import FinetuneConfig
from pipeline.tune.processes import make_accelerator
from pipeline.tune.results import Trial, TrialRecord
from pipeline.tune.trials import (
    StartRun,
    TrialRunner,
    end_tracked_runs,
    ended_as,
    stop_requests,
    stopping,
)
from pipeline.tune.workload import Workload


def train_side_by_side(
    accelerator: Accelerator,
    workload: Workload,
    workspace: Path,
    trials: Sequence[Trial],
    track: StartRun,
    num_updates: Mapping[str, int],
    advance: Advance,
) -> dict[str, TrialRecord]:
    """Run the trainings on the Ray cluster at `RAY_ADDRESS`, or on one that is started on this machine.

    All nodes see the workspace, the checkpoint and the tracking store under the same paths. A worker that dies is
    started again, and its training goes on after its last saved update.

    Args:
        num_updates: of each training, by its name.

    Returns:
        Records by name of the training.

    Raises:
        ConfigError: several processes were launched, each of which would start all trainings.
        PreemptedError: SIGTERM asked for a stop, and all trainings have saved.
        ClozeError: as a training raised it; the others stop, and go on with the next start.
    """
    if accelerator.num_processes > 1:
        raise ConfigError(
            f"side_by_side starts trainings by itself, but {accelerator.num_processes} processes were launched.",
            next_step="start one process, or set side_by_side=1 to share each training among the processes",
        )
    records: dict[str, TrialRecord] = {}
    with (
        ray_runtime(),
        _tracking_ended(workload, workspace, trials, track),
        stopping(workspace, clears=True),
    ):
        slots, num_cpus, num_gpus = _slots(workload.config)
        pool = run_pool(
            partial(TrialWorker, workload, workspace.resolve(), track, num_cpus),
            trials,
            num_workers=slots,
            num_cpus=num_cpus,
            num_gpus=num_gpus,
        )
        for trial, record, shown in pool:
            if record is None:
                advance(0, shown)
            else:
                records[trial.name] = record
                advance(num_updates[trial.name], f"{trial.name} done")
    return records


@contextmanager
def _tracking_ended(
    workload: Workload, workspace: Path, trials: Sequence[Trial], track: StartRun
) -> Iterator[None]:
    """End the MLflow runs of workers that were killed because the block failed."""
    try:
        yield
    except BaseException as error:
        if track is start_run:
            end_tracked_runs(workload, workspace, trials, ended_as(error))
        raise


def _slots(config: FinetuneConfig) -> tuple[int, int, int]:
    """Trainings at a time, and the CPUs and GPUs of each."""
    import ray

    resources = ray.cluster_resources()
    cpus, gpus = int(resources.get("CPU", 1)), int(resources.get("GPU", 0))
    threads = config.num_threads or 1
    if gpus:
        return config.side_by_side or gpus, 1, 1
    return config.side_by_side or max(1, cpus // threads), min(threads, cpus), 0


class TrialWorker:
    """A worker of the pool: encodes tasks and reads weights once, for all of its trainings."""

    def __init__(self, workload: Workload, workspace: Path, track: StartRun, num_threads: int) -> None:
        self._num_threads = num_threads
        self._request = StopFile(stop_requests(workspace))
        config = workload.config.model_copy(update={"num_threads": num_threads})
        self._runner = TrialRunner(make_accelerator(config), workload, workspace, track)
        self._shown = ""

    def work(self, trial: Trial) -> TrialRecord:
        """Run one training."""
        import torch

        # OpenMP counts its threads for each calling thread, and Ray calls from more than one.
        torch.set_num_threads(self._num_threads)
        return self._runner.run(trial, self._show, self._request)

    def progress(self) -> str:
        """The training's last line."""
        return self._shown

    def _show(self, updates: int, shown: str) -> None:
        self._shown = shown
