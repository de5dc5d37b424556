"""The trainer of a rank, made part by part. First the run is taken over and the checkpoint to start from is found, then
come the log, the data, and the network."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import TypeVar

import torch

from cluster.artefacts.errors import ConfigError
from cluster.artefacts.manifest import created_by
from cluster.collectives import from_rank_zero, gathered
from cluster.group import Rank
from cluster.stopping import StopFile
from models.initialization import init_weights
from pipeline.checkpoint.references import resolve_model
from pipeline.checkpoint.store import store_of
from pipeline.engine.deepspeed.engine import Engine
from pipeline.engine.device import prepare_network, trains_on_cuda
from pipeline.engine.interface import EngineSettings
from pipeline.pretrain.batches import HostBatch, host_batch
from pipeline.pretrain.evaluation import Evaluation
from pipeline.pretrain.measure import Measurements, describe
from pipeline.pretrain.ownership import Fence
from pipeline.pretrain.run_checkpoints import RunCheckpoints, find_start
from pipeline.pretrain.step import Trainer
from pipeline.pretrain.step_timer import StepTimer
from pipeline.run.config import PretrainConfig
from pipeline.run.directory import RunDirectory
from pipeline.run.events import Event
from pipeline.run.history import environment
from pipeline.run.inputs import Inputs, open_inputs
from pipeline.run.log.log import RunLog
from pipeline.run.log.mlflow_sink import send_to_mlflow
from pipeline.run.log.wandb_sink import send_to_wandb
from pipeline.run.skipped_data import SkipLedger
from pipeline.run.state import Heartbeat
from pipeline.samples.index_cache import IndexCache
from pipeline.samples.loader import StepLoader
from pipeline.samples.noise import Noise
from pipeline.samples.packed import Packed


def assemble(
    run: RunDirectory, config: PretrainConfig, rank: Rank, ending: ExitStack
) -> tuple[Trainer, bool]:
    """Assemble a trainer and restore the newest checkpoint.

    Args:
        ending: closes its parts; the caller leaves it when training ends.

    Returns:
        The trainer, and whether a checkpoint was restored.

    Raises:
        ConfigError: the configuration does not fit this group, or this machine.
    """
    require_even_share(config, rank.world_size)
    is_first = rank.rank == 0
    heartbeat = closed_by(ending, Heartbeat(run, rank.rank, config.guards.stall_timeout_s))
    fence = Fence(run) if is_first else None
    store = store_of(run, config)
    start = find_start(run, rank, store)
    first_step = 0 if start is None else start.step
    is_lost = fence.is_lost if fence is not None else lambda: False
    log = closed_by(ending, RunLog(run, since=first_step, writes=is_first, is_lost=is_lost))
    if is_first:
        if run.info.tracking_uri:
            log.senders.append(send_to_mlflow(run))
        if config.wandb is not None:
            log.senders.append(send_to_wandb(run))
    # Its alarm is taken back first: sending the rest of the log may take longer than a stall.
    closed_by(ending, heartbeat)
    # Rank 0 reads for all: a shared file system may show ranks different states of a file.
    skipped = SkipLedger(run, from_rank_zero(SkipLedger(run).entries if is_first else None))
    cache = IndexCache(run.index_cache, writes=True, report=run.record_event)
    inputs, loader, evaluation = _open_data(config, rank, cache, skipped.data_step(first_step))
    model = inputs.build_model()
    init_weights(model, config.seed)
    attention = prepare_network(model, inputs.model, config, device_of(rank))
    engine = Engine(model, EngineSettings.of(config), rank)
    # The indices of epochs that the run has left.
    cache.evict_unused()
    checkpoints = RunCheckpoints(run, config, rank, store, inputs, log, heartbeat, fence)
    workers = gathered({"rank": rank.rank, **describe(engine.device)})
    trainer = Trainer(
        run=run,
        config=config,
        rank=rank,
        fence=fence,
        loader=loader,
        evaluation=evaluation,
        engine=engine,
        heartbeat=heartbeat,
        log=log,
        stop_file=StopFile(run.path),
        skipped=skipped,
        checkpoints=checkpoints,
        measurements=Measurements(run, config, rank, engine.device, inputs.build_model, workers, log),
        timer=closed_by(
            ending, StepTimer(engine.device, config.profile, run.profile, rank.rank, log.history)
        ),
    )
    if start is not None:
        trainer.restore(start)
    log.history(
        Event.STARTED,
        step=trainer.counters.step,
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
    return trainer, start is not None


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
    terms = config.objective.terms()
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
        seed=config.seed,
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


Part = TypeVar("Part", bound=Heartbeat | RunLog | StepTimer)


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
