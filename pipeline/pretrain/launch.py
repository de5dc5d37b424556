"""Runs as their driver begins, continues or finds them: everything is checked first, then workers take over."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from cluster import logs, signals
from cluster.artefacts.credentials import tracking_environment
from cluster.artefacts.errors import ClozeError, ResumeRefusedError
from cluster.artefacts.places import absolute
from cluster.artefacts.seals import SeenFiles
from cluster.artefacts.signatures import require_key
from cluster.artefacts.visible import visible
from cluster.collectives import from_rank_zero
from cluster.failures import restarts
from cluster.group import GroupSize, Rank, run_group
from cluster.runtime import ray_runtime
from cluster.stopping import StopFile, stop_on_sigterm
from pipeline.checkpoint.checkpoint import step_of
from pipeline.checkpoint.references import resolve_model
from pipeline.config.loading import to_plain
from pipeline.objectives.base import pin_references
from pipeline.pretrain.lost_workers import Attempts, memory_explained, require_room
from pipeline.pretrain.ownership import end_leftovers
from pipeline.pretrain.progress import shown_progress
from pipeline.pretrain.resume_checks import check_resume
from pipeline.pretrain.stall_watch import watching
from pipeline.run.config import PretrainConfig, identity_of
from pipeline.run.directory import RunDirectory, RunInfo, list_runs
from pipeline.run.events import Event
from pipeline.run.history import changed_packages
from pipeline.run.lifecycle import record_end, record_failure, record_launch, replay
from pipeline.run.log.mlflow_sink import want_status
from pipeline.run.log.wandb_sink import require_client, wandb_environment
from pipeline.run.state import has_made_updates, state_of

if TYPE_CHECKING:
    from pipeline.run.inputs import Inputs


@contextmanager
def new_run(config: PretrainConfig, *, submission_id: str | None = None) -> Iterator[RunDirectory]:
    """Create a run as `create_run` does, with the cluster that trains it connected for the block.

    No run is created if the cluster cannot be reached.
    """
    checked = _checked(config)
    with _cluster_of(config):
        yield _created(config, *checked, submission_id)


def train_to_end(config: PretrainConfig, *, submission_id: str | None = None) -> RunDirectory:
    """Train a configuration to its end, and return its run.

    A finished run of the same name, settings and data is returned as it is, and an unfinished one is continued from its
    newest checkpoint, also on another number of workers. Otherwise a new one begins.
    """
    found = find_same_run(config)
    if found is None:
        with new_run(config, submission_id=submission_id) as run:
            execute(run)
        return run
    with found.held("its resumption"):
        if not is_finished(found):
            print(f"continuing the run {found.path.name}", file=sys.stderr)
            found.reconfigure(settled(config))
            execute(found, held=True)
    return found


def continue_run(
    run: RunDirectory,
    overrides: Sequence[str] = (),
    *,
    allow_changed: Sequence[str] = (),
    at: int | None = None,
) -> None:
    """Continue a run to its end from its newest good checkpoint.

    Args:
        overrides: settings that change from here on.
        allow_changed: keys that may differ from the checkpoint's.
        at: the checkpoint that the run is rolled back to; later ones are set aside.
    """
    # To the end, because workers read the settings at every restart: no other command may change them until then.
    with run.held("its resumption"):
        settings = settled(run.config(tuple(overrides)))
        start = check_resume(run, settings, allow_changed, at=at)
        step = 0 if start is None else step_of(start)
        if packages := changed_packages(run):
            said = f"Results may round otherwise from here on: {'; '.join(packages)}."
            print(visible(said), file=sys.stderr)
        print(f"resume {run.path.name} at step {step} of {settings.num_steps}", file=sys.stderr)
        if step < settings.num_steps or not run.events(Event.FINISHED):
            run.reconfigure(settings)
            execute(run, held=True)


def find_same_run(config: PretrainConfig) -> RunDirectory | None:
    """The newest run with this name, these settings and this data; None without one. Nothing is changed."""
    same = settled(config)
    runs = sorted(list_runs(config.runs_dir), key=lambda run: run.info_file.stat().st_mtime, reverse=True)
    for run in runs:
        try:
            # Validating the configurations of many runs takes seconds; names do not.
            if not run.info.name.startswith(f"{same.name}-"):
                continue
            theirs = run.config()
        except ClozeError:
            continue  # damaged: it is not continued without being asked for
        if theirs.name != same.name or identity_of(theirs) != identity_of(same):
            continue
        try:
            check_resume(run, same, look_only=True)
        except ResumeRefusedError:
            continue  # its tokens, tokenizer or teacher were others
        return run
    return None


def is_finished(run: RunDirectory) -> bool:
    """Whether a run made all its updates."""
    return state_of(run).name == "finished"


def create_run(config: PretrainConfig) -> RunDirectory:
    """Verify the data, create the MLflow run and the run's directory; nothing is trained yet.

    Raises:
        CorruptArtefactError, MismatchError, ConfigError: the data is damaged or does not fit.
        OutOfMemoryError: the network is far larger than what this machine could train.
        TrackingUnreachableError: no tracking store answers.
        UntrustedArtefactError: as `require_key`.
    """
    return _created(config, *_checked(config))


def _checked(config: PretrainConfig) -> tuple[Inputs, SeenFiles]:
    """The verified inputs of a run that can be trained here, and what was verified."""
    from pipeline.run.inputs import open_inputs

    require_key()
    require_client(config.wandb)
    seen = SeenFiles()
    inputs = open_inputs(config, verify=True, resolve=resolve_model, seen=seen)
    inputs.require_samples()
    require_room(config, inputs.model)
    return inputs, seen


def _created(
    config: PretrainConfig, inputs: Inputs, seen: SeenFiles, submission_id: str | None = None
) -> RunDirectory:
    from pipeline.run.tracking import start_run

    config = settled(config)
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
    checkpoint = config.checkpoint.model_copy(
        update={"directory": None if place is None else absolute(place)}
    )
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
    next_step = f"cloze resume {run.typed}"
    logs.bind(run=run.path.name)
    config = run.config()
    cluster = config.cluster
    require_key()
    require_client(config.wandb)
    with (
        signals.continued_by(next_step, kept="the run and its committed checkpoints"),
        driven(run, held=held),
        _cluster_of(config),
        shown_progress(run, config),
        stopped(run, config.guards.grace_s) as stop,
        watching(run) as watch,
    ):
        attempts = Attempts(run, config)
        with attempts.explained(watch):
            run_group(
                run_rank,
                run.path.resolve(),
                GroupSize(config.group_sizes, cluster.cpus_per_worker, cluster.gpus_per_worker),
                limits=restarts(lost=cluster.max_failures, raised=cluster.max_errors),
                stop=stop,
                next_step=next_step,
                environment={**tracking_environment(), **wandb_environment(), **logs.environment()},
                on_end=attempts.record,
                resize_interval_s=cluster.resize_interval_s,
            )


@contextmanager
def driven(
    run: RunDirectory, *, held: bool = False, recorded: type[BaseException] = BaseException
) -> Iterator[None]:
    """Hold a run while the block trains it. Workers of earlier attempts are ended first; the launch and the end are
    recorded.

    Args:
        held: whether the caller holds the run's lock already.
        recorded: the errors that say why the run ended.

    Raises:
        StorageError: another process is training it.
    """
    with nullcontext() if held else run.held("its training"):
        with run.refusals():
            end_leftovers(run)
            record_launch(run)
            want_status(run, "RUNNING")
        try:
            yield
        except recorded as error:
            record_failure(run, error)
            # Files of the run that are damaged or gone must not hide why it ended.
            with suppress(ClozeError):
                replay(run)
            raise
        record_end(run)
        replay(run)


def stopped(run: RunDirectory, grace_s: float, *, clears: bool = True) -> AbstractContextManager[StopFile]:
    """Stop a run as `stop_on_sigterm` does; at once where it made no update yet."""
    return stop_on_sigterm(
        run.path,
        grace_s=grace_s,
        next_step=f"cloze resume {run.typed}",
        clears=clears,
        nothing_to_save=lambda: not has_made_updates(run),
    )


def _cluster_of(config: PretrainConfig) -> AbstractContextManager[None]:
    """The Ray cluster of a run's group."""
    num_cpus = max(os.cpu_count() or 1, config.group_sizes[0] * config.cluster.cpus_per_worker)
    return ray_runtime(config.cluster.address, num_cpus=num_cpus)


def run_rank(directory: Path, rank: Rank) -> None:
    """Body of every worker: train the run in a directory as far as it goes."""
    # Imported in the worker: its driver starts without DeepSpeed and the network.
    import torch

    from pipeline.engine.device import deterministic_algorithms, trains_on_cuda
    from pipeline.pretrain.assembly import assemble

    logs.start()
    logs.bind(run=directory.name, rank=rank.rank)
    torch.set_num_threads(rank.num_threads)
    run = RunDirectory(directory)
    # On a full GPU, the first exchange fails.
    with memory_explained(run, rank.rank), ExitStack() as ending:
        if trains_on_cuda():
            # Before the first exchange, which takes the current device.
            torch.cuda.set_device(rank.local_rank)
        config = from_rank_zero(run.config() if rank.rank == 0 else None)
        ending.enter_context(deterministic_algorithms(config.compute.deterministic))
        trainer, is_resumed = assemble(run, config, rank, ending)
        trainer.train(is_resumed=is_resumed)
