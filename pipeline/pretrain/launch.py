"""Starting and resuming runs from the driver: check everything first, then hand over to the workers."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cluster.errors import ResumeRefusedError
from cluster.manifest import InputEntry
from cluster.progress import progress
from cluster.runtime import ray_runtime
from cluster.train_group import GroupSize, run_group
from pipeline.config import to_plain
from pipeline.pretrain import checkpoint as checkpoints
from pipeline.pretrain.config import PretrainConfig, identity_of
from pipeline.pretrain.run_directory import RunDirectory, RunInfo
from pipeline.pretrain.run_log import read_new, send_log

_POLL_S = 0.5


def create_run(config: PretrainConfig, *, submission_id: str | None = None) -> RunDirectory:
    """Verify the data, create the MLflow run and the run's directory; nothing is trained yet.

    Raises:
        CorruptArtefactError, MismatchError, ConfigError: the data is damaged or does not fit.
        TrackingUnreachableError: no tracking store answers.
    """
    from pipeline.pretrain.trainer import open_inputs
    from pipeline.tracking import start_run

    inputs = open_inputs(config, verify=True)
    tracked = start_run(
        config.experiment,
        config.name,
        config=to_plain(config),
        tags={
            "cloze.tokens": ",".join(store.fingerprint for store in inputs.stores),
            "cloze.data_fingerprint": inputs.train.fingerprint,
            **({"cloze.submission_id": submission_id} if submission_id else {}),
        },
        runs_dir=config.runs_dir,
    )
    name = f"{config.name}-{tracked.run_id[:8]}"
    run = RunDirectory(config.runs_dir / name)
    run.create(
        RunInfo(
            name=name, run_id=tracked.run_id, tracking_uri=tracked.uri, submission_id=submission_id
        ),
        config,
    )
    return run


def check_resume(run: RunDirectory, config: PretrainConfig) -> Path | None:
    """Make sure that the newest good checkpoint continues under `config`; returns it, None at step 0.

    Raises:
        ResumeRefusedError: data, objective, model or batch differ from the checkpoint's; names each difference.
        CorruptCheckpointError: there are checkpoints, and none verifies.
    """
    from pipeline.pretrain.engine import optimizer_name
    from pipeline.pretrain.trainer import open_inputs

    start, messages = checkpoints.newest_good(run.checkpoints)
    for message in messages:
        run.record_event("checkpoint-set-aside", message=message)
    inputs = open_inputs(config, verify=True)
    if start is None:
        return None
    state = checkpoints.read_trainer_state(start)
    differences = _differences(state.identity, identity_of(config))
    fingerprints = [store.fingerprint for store in inputs.stores]
    if state.store_fingerprints != fingerprints:
        differences.append(f"token fingerprints were {state.store_fingerprints}, are {fingerprints}")
    if state.optimizer != optimizer_name():
        differences.append(f"the optimizer was {state.optimizer}, this machine gives {optimizer_name()}")
    if state.zero_stage != config.zero.stage:
        differences.append(f"zero.stage was {state.zero_stage}, is {config.zero.stage}")
    if differences:
        listed = "\n".join(f"  {difference}" for difference in differences)
        raise ResumeRefusedError(
            f"{run.path.name} at step {state.step} does not continue under this configuration:\n{listed}",
            kept=f"the run and its checkpoint {start}",
            next_step=f"undo the changes, or start a new run with `cloze pretrain {run.path / 'config.yaml'}`",
        )
    return start


def execute(run: RunDirectory, config: PretrainConfig, overrides: Sequence[str] = ()) -> None:
    """Train `run` to its end on a Ray Train group, from wherever it stands."""
    cluster = config.cluster
    size = GroupSize(cluster.workers, cluster.cpus_per_worker, cluster.gpus_per_worker)
    argument = {"run": str(run.path.resolve()), "overrides": list(overrides)}
    num_cpus = max(os.cpu_count() or 1, size.workers * size.cpus_per_worker)
    mark_status(run, "RUNNING")
    try:
        with ray_runtime(cluster.address, num_cpus=num_cpus), _shown_progress(run, config.steps):
            run_group(
                _run_rank,
                argument,
                size,
                name=run.path.name,
                storage=run.path / "ray-train",
                max_failures=cluster.max_failures,
            )
    except BaseException as error:
        run.record_event("failed", error=type(error).__name__, message=str(error)[:2000])
        mark_status(run, "FAILED")
        raise
    run.record_event("finished", step=config.steps)
    replay(run)
    mark_status(run, "FINISHED")


def replay(run: RunDirectory) -> bool:
    """Send what the log holds and MLflow does not have yet; False when the tracking store does not answer."""
    info = run.info
    try:
        send_log(run.path, uri=info.tracking_uri, run_id=info.run_id, model_name=info.name)
    except Exception as error:
        run.record_event("tracking-behind", message=str(error)[:2000])
        return False
    return True


def mark_status(run: RunDirectory, status: str) -> None:
    """Set the MLflow run's status; a tracking store that is down is noted and passed over."""
    from pipeline.tracking import connect

    try:
        connect(run.info.tracking_uri).update_run(run.info.run_id, status=status)
    except Exception as error:
        run.record_event("tracking-behind", message=str(error)[:2000])


def token_inputs(run: RunDirectory) -> tuple[InputEntry, ...]:
    """What the run was trained on, as its newest checkpoint states it."""
    from cluster.manifest import read_manifest

    found = checkpoints.list_checkpoints(run.checkpoints)
    return read_manifest(found[-1]).inputs if found else ()


def _run_rank(argument: Any, rank: Any) -> None:
    # Imported in the worker: the driver needs neither DeepSpeed nor the network to start it.
    from pipeline.pretrain.trainer import run_rank

    run_rank(argument, rank)


def _differences(old: Any, new: Any, key: str = "") -> list[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        return [
            difference
            for name in sorted(old.keys() | new.keys())
            for difference in _differences(old.get(name), new.get(name), f"{key}.{name}".lstrip("."))
        ]
    return [] if old == new else [f"{key} was {old}, is {new}"]


@contextmanager
def _shown_progress(run: RunDirectory, total: int) -> Iterator[None]:
    """Follow the run's log from the driver and show it; the workers themselves print nothing."""
    stop = threading.Event()

    def follow() -> None:
        shown = offset = 0
        with progress(f"pretrain {run.path.name}", total) as advance:
            while True:
                stopping = stop.wait(_POLL_S)
                entries, offset = read_new(run.path, offset)
                steps = [entry for entry in entries if entry["kind"] == "train"]
                if steps:
                    data = steps[-1]["data"]
                    text = f"loss {data['loss']:.3f}  {data['tokens_per_s']:,.0f} tokens/s"
                    advance(steps[-1]["step"] - shown, text)
                    shown = steps[-1]["step"]
                if stopping:
                    return

    thread = threading.Thread(target=follow, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
