"""The parts of a rank's attempt at a run, made in order: the run is taken over, and the checkpoint to start from is
found; then its log is opened, then its data, then the network."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

import torch

from cluster import logs
from cluster.artefacts.errors import ConfigError, StorageError
from cluster.artefacts.manifest import created_by
from cluster.collectives import from_rank_zero, gathered, while_others_wait
from cluster.group import Rank
from cluster.stopping import StopFile
from models.initialization import init_weights
from pipeline.checkpoint.checkpoint import DEEPSPEED_DIRECTORY, TrainerState, read_trainer_state, step_of
from pipeline.checkpoint.references import resolve_model
from pipeline.checkpoint.store import CheckpointStore, newest_good, store_of
from pipeline.engine.deepspeed.engine import Engine
from pipeline.engine.device import prepare_network, trains_on_cuda
from pipeline.engine.interface import EngineSettings
from pipeline.objectives import OBJECTIVES
from pipeline.pretrain.batches import HostBatch, host_batch
from pipeline.pretrain.evaluation import Evaluation
from pipeline.pretrain.machine import describe
from pipeline.pretrain.measure import Measurements
from pipeline.pretrain.ownership import Fence
from pipeline.pretrain.profiling import StepProfiler
from pipeline.pretrain.resume_checks import require_not_lost
from pipeline.pretrain.run_checkpoints import Counters, RunCheckpoints
from pipeline.pretrain.spikes import SpikeGuard
from pipeline.run.config import PretrainConfig
from pipeline.run.directory import RunDirectory
from pipeline.run.events import Event
from pipeline.run.history import environment
from pipeline.run.inputs import Inputs, open_inputs
from pipeline.run.log.reporter import Reporter
from pipeline.run.state import Heartbeat
from pipeline.samples.index_cache import IndexCache
from pipeline.samples.loader import StepLoader
from pipeline.samples.noise import Noise
from pipeline.samples.packed import Packed


@dataclass(slots=True)
class Parts:
    """The parts that a rank trains with."""

    run: RunDirectory
    config: PretrainConfig
    rank: Rank
    fence: Fence | None
    """On rank 0: the token by which this group took the run over; earlier groups write nothing any more."""
    store: CheckpointStore
    inputs: Inputs
    loader: StepLoader[HostBatch]
    evaluation: Evaluation
    weights: Mapping[str, float]
    """By loss term, its weight in the loss."""
    engine: Engine
    heartbeat: Heartbeat
    reporter: Reporter
    stop_file: StopFile
    spikes: SpikeGuard
    counters: Counters
    checkpoints: RunCheckpoints
    measurements: Measurements
    profiler: StepProfiler

    def beat(self, part: str) -> None:
        """Give a sign of life, in a part of a step."""
        logs.bind(step=self.counters.step)
        self.heartbeat.beat(self.counters.step, part)

    def restore(self, start: Start) -> None:
        """Restore the engine, the counters and the loss window from a checkpoint."""
        state = start.state
        self.counters = Counters.of(state, self.config.metric)
        # At the checkpoint's step: heartbeats count the updates since the first one.
        self.beat("loading")
        self.engine.restore(start.directory / DEEPSPEED_DIRECTORY)
        self.spikes.restore(state.losses)


class Start(NamedTuple):
    """A checkpoint that training continues from."""

    directory: Path
    state: TrainerState


def find_start(run: RunDirectory, rank: Rank, store: CheckpointStore) -> Start | None:
    """The newest good checkpoint, verified by rank 0, on this machine; None before the first. All ranks call it.

    Raises:
        CorruptCheckpointError: there are checkpoints and none verifies.
        StorageError: the store cannot be read.
    """

    def newest_step() -> int | None:
        try:
            path, messages = newest_good(store)
        except StorageError as error:
            raise StorageError(
                error.problem,
                kept="the run and its checkpoints",
                next_step=f"when they can be read again: cloze resume {run.typed}",
            ) from error
        require_not_lost(run, path)
        for message in messages:
            run.record_event(Event.CHECKPOINT_SET_ASIDE, message=message)
        return None if path is None else step_of(path)

    step = from_rank_zero(while_others_wait(newest_step if rank.rank == 0 else None))
    if step is None:
        return None
    copies = store.copies and rank.local_rank == 0 and rank.rank != 0
    while_others_wait((lambda: store.fetch(step)) if copies else None)
    return Start(store.local(step), read_trainer_state(store.local(step)))


def assemble(run: RunDirectory, config: PretrainConfig, rank: Rank, ending: ExitStack) -> tuple[Parts, bool]:
    """Assemble all parts and restore the newest checkpoint.

    Args:
        ending: closes the parts; the caller leaves it when training ends.

    Returns:
        The parts, and whether a checkpoint was restored.

    Raises:
        ConfigError: the configuration does not fit this group, or this machine.
    """
    require_even_share(config, rank.world_size)
    is_first = rank.rank == 0
    heartbeat = closed_by(ending, Heartbeat(run, rank.rank, config.guards.stall_timeout_s))
    fence = Fence(run) if is_first else None
    store = store_of(run, config)
    start = find_start(run, rank, store)
    first_step = 0 if start is None else start.state.step
    reporter = closed_by(
        ending,
        Reporter(
            run,
            since=first_step,
            is_reporter=is_first,
            wandb=config.wandb is not None,
            is_lost=fence.is_lost if fence is not None else lambda: False,
        ),
    )
    # Its alarm is taken back first: sending the rest of the log may take longer than a stall.
    closed_by(ending, heartbeat)
    spikes = SpikeGuard(run, config, writes=is_first)
    cache = IndexCache(run.index_cache, writes=True, report=run.record_event)
    inputs, loader, evaluation = _open_data(config, rank, cache, spikes.skipped.data_step(first_step))
    model = inputs.build_model()
    init_weights(model, config.seed)
    attention = prepare_network(model, inputs.model, config, device_of(rank))
    engine = Engine(model, EngineSettings.of(config), rank)
    # The indices of epochs that the run has left.
    cache.evict_unused()
    checkpoints = RunCheckpoints(
        run,
        config,
        rank,
        store,
        inputs,
        reporter,
        while_waiting=lambda: parts.beat("saving"),
        fence=fence,
    )
    workers = gathered({"rank": rank.rank, **describe(engine.device)})
    parts = Parts(
        run,
        config,
        rank,
        fence,
        store,
        inputs,
        loader,
        evaluation,
        evaluation.weights,
        engine,
        heartbeat,
        reporter,
        StopFile(run.path),
        spikes,
        Counters(),
        checkpoints,
        Measurements(run, config, rank, engine.device, inputs.build_model, workers, reporter),
        closed_by(ending, StepProfiler(config.profile, run.profile, rank.rank, reporter.history)),
    )
    if start is not None:
        parts.restore(start)
    reporter.history(
        Event.STARTED,
        step=parts.counters.step,
        world_size=rank.world_size,
        optimizer=config.optimizer.kind,
        device=str(engine.device),
        attention=attention._asdict(),
        workers=workers,
        attempt=checkpoints.attempt,
        store_fingerprints=[store.fingerprint for store in inputs.stores],
        commit=created_by().commit,
        environment=environment(),
    )
    return parts, start is not None


def _open_data(
    config: PretrainConfig, rank: Rank, cache: IndexCache, first_data_step: int
) -> tuple[Inputs, StepLoader[HostBatch], Evaluation]:
    """Open the data; the index of the epoch of `first_data_step`, the first global batch, is made in the background."""
    device = device_of(rank)
    inputs = open_inputs(config, verify=False, resolve=resolve_model, cache=cache)

    def prepare(packed: Packed, noise: Noise) -> HostBatch:
        return host_batch(packed, inputs.corrupt(packed, noise), device)

    noise = Noise.of("train", config.seed)
    loader = StepLoader(
        inputs.phases,
        config.batch_plan,
        partial(prepare, noise=noise),
        rank=rank.rank,
        world_size=rank.world_size,
        lengths=inputs.lengths(noise),
    )
    loader.prepare(first_data_step)
    terms = OBJECTIVES[config.objective.kind].terms(config.objective)
    held_out = {"": inputs.held_out}
    if config.evaluation.per_source:
        held_out |= inputs.held_out_by_source
    noise = Noise.of("evaluation", config.seed)
    evaluation = Evaluation(
        held_out,
        partial(prepare, noise=noise),
        terms,
        inputs.source_names,
        samples=config.evaluation.samples,
        micro_batch_size=config.batch.micro_batch_size,
        lengths=inputs.lengths(noise),
        before_batch=lambda number: seed_dropout(config.seed, 0, number),
    )
    return inputs, loader, evaluation


def require_even_share(config: PretrainConfig, world_size: int) -> None:
    """Raise ConfigError unless every rank gets equally many micro-batches of every step."""
    batch = config.batch
    for samples in (*(stage.samples for stage in batch.warmup), batch.samples):
        if (samples // batch.micro_batch_size) % world_size:
            raise ConfigError(
                f"The {samples // batch.micro_batch_size} micro-batches of a step cannot be shared out evenly over"
                f" {world_size} workers.",
                next_step="choose a number of workers that divides batch.samples / batch.micro_batch_size",
            )


def device_of(rank: Rank) -> torch.device:
    """The device that a rank computes on."""
    return torch.device("cuda", rank.local_rank) if trains_on_cuda() else torch.device("cpu")


def seed_dropout(seed: int, step: int, micro_batch: int) -> None:
    """Make dropout a function of (seed, step, micro-batch), on whichever rank the micro-batch runs."""
    torch.manual_seed(Noise.of("dropout", seed, step, micro_batch).seed())


Part = TypeVar("Part", bound=Heartbeat | Reporter | StepProfiler)


def closed_by(ending: ExitStack, part: Part) -> Part:
    """Have `ending` close a part; returns the part.

    The error that training ends with stays the one that is raised: a part that fails to close only adds a note to it.
    After a good end, the first such failure is raised, and the later ones are its notes.
    """

    def leave(kind: object, error: BaseException | None, trace: object) -> None:
        try:
            part.close()
        except Exception as failure:
            if error is None:
                raise
            error.add_note(f"Closing {type(part).__name__} failed too: {type(failure).__name__}: {failure}")

    ending.push(leave)
    return part
