"""Starting and resuming runs from the driver: check everything first, then hand over to the workers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from cluster import logs, signals
from cluster.artefacts.credentials import tracking_environment
from cluster.artefacts.errors import ClozeError, WorkersLostError
from cluster.artefacts.places import absolute
from cluster.artefacts.repeated import repeated
from cluster.artefacts.seen_files import SeenFiles
from cluster.artefacts.signatures import require_key
from cluster.elastic import GroupSize
from cluster.group import Ending, GroupFailure, Restarts, run_group
from cluster.progress import progress
from cluster.runtime import ray_runtime
from cluster.stopping import StopFile, stop_on_sigterm
from pipeline.checkpoint.references import resolve_model
from pipeline.checkpoint.store import store_of
from pipeline.config.loading import to_plain
from pipeline.objectives.outside import pin_references
from pipeline.pretrain.endings import stalled
from pipeline.pretrain.event_messages import EventMessages
from pipeline.pretrain.lost_workers import record_lost_workers
from pipeline.pretrain.memory import (
    count_oom_kills,
    explain_killed_worker,
    memory_explained,
    require_room,
    what_fits,
)
from pipeline.pretrain.ownership import end_leftovers
from pipeline.pretrain.stall_watch import StallWatch, watching
from pipeline.run.config import PretrainConfig
from pipeline.run.directory import RunDirectory, RunInfo
from pipeline.run.events import Event
from pipeline.run.heartbeat import has_made_updates, read_heartbeats
from pipeline.run.history import last_logged
from pipeline.run.lifecycle import record_end, record_failure, record_launch, replay
from pipeline.run.log.kinds import LogKind
from pipeline.run.log.lines import log_size, read_new
from pipeline.run.log.mlflow_sink import want_status
from pipeline.run.log.wandb_sink import require_client, wandb_environment
from pipeline.run.token_plan import UNBOUNDED_STEPS

_POLL_S = 0.5


def begin(
    config: PretrainConfig,
    *,
    submission_id: str | None = None,
    created: Callable[[RunDirectory], None] | None = None,
) -> RunDirectory:
    """Create a run and train it to its end.

    Args:
        created: called as soon as there is a run.

    Raises:
        ClozeError: as `create_run` and `execute`.
    """
    with ExitStack() as held:
        # A cluster that cannot be reached leaves no run behind.
        run = create_run(
            config, submission_id=submission_id, checked=lambda: held.enter_context(_cluster_of(config))
        )
        if created is not None:
            created(run)
        execute(run)
    return run


def create_run(
    config: PretrainConfig, *, submission_id: str | None = None, checked: Callable[[], None] | None = None
) -> RunDirectory:
    """Verify the data, create the MLflow run and the run's directory; nothing is trained yet.

    Args:
        checked: called when the data is verified, before there is a run.

    Raises:
        CorruptArtefactError, MismatchError, ConfigError: the data is damaged or does not fit.
        OutOfMemoryError: the network is far larger than what this machine could train.
        TrackingUnreachableError: no tracking store answers.
        UntrustedArtefactError: as `require_key`.
    """
    from pipeline.run.inputs import open_inputs
    from pipeline.run.tracking import start_run

    require_key()
    require_client(config.wandb)
    seen = SeenFiles()
    inputs = open_inputs(config, verify=True, resolve=resolve_model, seen=seen)
    inputs.require_samples()
    require_room(config, inputs.model)
    config = settled(config)
    if checked is not None:
        checked()
    tracked = start_run(
        config.experiment,
        config.name,
        config=to_plain(config),
        tags={
            "cloze.tokens": ",".join(store.fingerprint for store in inputs.stores),
            "cloze.data_fingerprint": inputs.data_fingerprint,
            **({"cloze.submission_id": submission_id} if submission_id else {}),
        },
        runs_dir=config.runs_dir,
    )
    name = f"{config.name}-{tracked.run_id[:8]}"
    run = RunDirectory(config.runs_dir / name)
    try:
        run.create(
            RunInfo(
                name=name,
                run_id=tracked.run_id,
                tracking_uri=tracked.uri,
                experiment_id=tracked.experiment_id,
                submission_id=submission_id,
            ),
            config,
        )
        record_launch(run)
        seen.write(run.verified)
    except BaseException:
        tracked.finish("KILLED" if signals.received() else "FAILED")
        raise
    return run


def settled(config: PretrainConfig) -> PretrainConfig:
    """The configuration as workers on other machines, and resumptions from other directories, need it: paths are
    absolute, and references of trained models are the directories that they mean now.

    Raises:
        ReferenceNotFoundError: there is no such model.
    """
    stores = tuple(store.model_copy(update={"path": absolute(store.path)}) for store in config.data.stores)
    data = config.data.model_copy(update={"stores": stores})
    place = config.checkpoint.directory
    if place is not None and "://" not in place:
        place = str(Path(place).expanduser().resolve())
    checkpoint = config.checkpoint.model_copy(update={"directory": place})
    changed = {
        "data": data,
        "runs_dir": config.runs_dir.resolve(),
        "objective": pin_references(config.objective, resolve_model),
        "checkpoint": checkpoint,
    }
    return config.model_copy(update=changed)


def execute(run: RunDirectory, *, held: bool = False) -> None:
    """Train `run` to its end on a group of workers, from its newest checkpoint.

    Args:
        held: whether the caller holds the run's lock already, so that its decisions stay valid until the end.

    Raises:
        StorageError: another process is training it.
        PreemptedError: SIGTERM asked for a stop.
        LossSpikeError, NonFiniteError, OutOfMemoryError, StalledError, WorkersLostError: it needs an operator.
    """
    with signals.goes_on_by(f"cloze resume {run.typed}", kept="the run and its committed checkpoints"):
        logs.bind(run=run.path.name)
        config = run.config()
        require_key()
        require_client(config.wandb)
        cluster = config.cluster
        largest, *smaller = config.group_sizes
        size = GroupSize(largest, cluster.cpus_per_worker, cluster.gpus_per_worker, tuple(smaller))
        with nullcontext() if held else run.held("its training"):
            _train(run, config, size)


def _cluster_of(config: PretrainConfig) -> AbstractContextManager[None]:
    """The Ray cluster of a run's group."""
    num_cpus = max(os.cpu_count() or 1, config.group_sizes[0] * config.cluster.cpus_per_worker)
    return ray_runtime(config.cluster.address, num_cpus=num_cpus)


def _train(run: RunDirectory, config: PretrainConfig, size: GroupSize) -> None:
    with run.refusals():
        end_leftovers(run)
        record_launch(run)
        want_status(run, "RUNNING")
    try:
        with (
            _cluster_of(config),
            _shown_progress(run, config),
            stop_on_sigterm(
                run.path,
                grace_s=config.guards.grace_s,
                next_step=f"cloze resume {run.typed}",
                nothing_to_save=lambda: not has_made_updates(run),
            ) as stop,
            watching(run) as watch,
        ):
            _train_group(run, config, size, watch, stop)
    except BaseException as error:
        record_failure(run, error)
        replay(run)
        raise
    record_end(run)
    replay(run)


def _train_group(
    run: RunDirectory, config: PretrainConfig, size: GroupSize, watch: StallWatch, stop: StopFile
) -> None:
    """Train to the end; a run that makes progress is restarted as often as needed.

    Every new checkpoint renews the restarts: a run of weeks loses a worker now and then, and only a run without
    progress is given up.
    """
    oom_kills, saved = count_oom_kills(), _newest_step(run)

    def on_end(ending: Ending, reason: GroupFailure | str) -> None:
        if isinstance(reason, GroupFailure):
            record_lost_workers(run, reason, count_oom_kills() - oom_kills)
        else:
            run.record_event(Event.MOVED, step=_newest_step(run), reason=reason)

    def renews(failure: GroupFailure) -> bool:
        nonlocal saved
        before, saved = saved, _newest_step(run)
        if saved > before:
            run.record_event(Event.RESTARTS_RENEWED, step=saved, message=str(failure)[:2000])
        return saved > before

    try:
        run_group(
            _run_rank,
            {"run": str(run.path.resolve())},
            size,
            restarts=Restarts(config.cluster.max_failures, config.cluster.max_errors),
            stop=stop,
            next_step=f"cloze resume {run.typed}",
            environment={**tracking_environment(), **wandb_environment(), **logs.environment()},
            on_end=on_end,
            renews=renews,
            resize_interval_s=config.cluster.resize_interval_s,
        )
    except WorkersLostError as error:
        raise _cause_of(error, run, config, watch, count_oom_kills() - oom_kills) from error


def _cause_of(
    error: WorkersLostError, run: RunDirectory, config: PretrainConfig, watch: StallWatch, oom_kills: int
) -> ClozeError:
    """The error that explains why the workers were lost the last time, or `error` itself."""
    if stall := watch.last_of(read_heartbeats(run)):
        stacks = sorted(run.stacks.glob(f"rank-*-{stall.beat.host}-{stall.beat.pid}.*"))
        return stalled(run, config.cluster.max_failures, str(stall), stacks)
    explained = explain_killed_worker(str(error.__cause__), oom_kills, config, lambda: what_fits(config))
    return explained or error


def _newest_step(run: RunDirectory) -> int:
    return max(store_of(run).steps(), default=-1)


def _run_rank(argument: Any, rank: Any) -> None:
    # Imported in the worker: the driver starts it without DeepSpeed and the network.
    from pipeline.pretrain.trainer import run_rank

    logs.start()
    logs.bind(run=Path(argument["run"]).name, rank=rank.rank)
    with memory_explained(RunDirectory(Path(argument["run"])), rank.rank):
        run_rank(argument, rank)


@contextmanager
def _shown_progress(run: RunDirectory, config: PretrainConfig) -> Iterator[None]:
    """Follow the run's log from the driver and show it; the workers themselves print nothing.

    Progress is in seconds for a run that only its time budget ends, else in updates.
    """
    budget_s = config.budget.time_s if config.budget is not None else None
    in_seconds = config.num_steps == UNBOUNDED_STEPS
    total = int(budget_s or 0) if in_seconds else config.num_steps

    def done(step: int, data: Mapping[str, Any]) -> int:
        return min(int(data.get("elapsed_s", 0)), total) if in_seconds else step

    last = last_logged(run)
    shown, offset = 0, log_size(run)
    messages = EventMessages(run)

    def look() -> None:
        nonlocal shown, offset
        messages.log_new()
        entries, offset = read_new(run, offset)
        steps = [(entry["step"], entry["data"]) for entry in entries if entry["kind"] == LogKind.STEP]
        if last is not None and not shown and steps:
            shown = done(*last)
            advance(shown)
        if steps:
            step, data = steps[-1]
            logs.bind(step=step)
            text = f"step {step}  loss {data['loss']:.3f}  {data['tokens_per_s']:,.0f} tokens/s"
            advance(done(step, data) - shown, text)
            shown = done(step, data)

    with (
        progress(f"pretrain {run.path.name}", total) as advance,
        repeated(look, _POLL_S, name="progress", once_more=True),
    ):
        yield
