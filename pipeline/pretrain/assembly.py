"""The parts of a rank's attempt at a run, put together from its configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import torch

from cluster.artefacts.errors import ConfigError
from cluster.group import Rank
from models.backends import Choice
from models.initialization import init_weights
from pipeline.checkpoint.references import resolve_model
from pipeline.engine.deepspeed.engine import Engine
from pipeline.engine.device import trains_on_cuda
from pipeline.engine.interface import EngineSettings
from pipeline.engine.network import prepare_network
from pipeline.objectives.registry import OBJECTIVES
from pipeline.pretrain.evaluation import Evaluation
from pipeline.pretrain.step.device_batches import HostBatch, host_batch
from pipeline.run.config import PretrainConfig
from pipeline.run.inputs import Inputs, open_inputs
from pipeline.samples.epochs.index_cache import IndexCache
from pipeline.samples.loader import StepLoader
from pipeline.samples.noise.noise import Noise
from pipeline.samples.packed import Packed


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts that a rank trains with."""

    inputs: Inputs
    engine: Engine
    attention: Choice
    """The kernel of the attention, and why."""
    weights: Mapping[str, float]
    """By loss term, its weight in the loss."""
    loader: StepLoader[HostBatch]
    evaluation: Evaluation


def assemble(config: PretrainConfig, rank: Rank, cache: IndexCache, *, first_data_step: int) -> Parts:
    """Open the data, build the network and its engine.

    Args:
        cache: of the indices of epochs.
        first_data_step: the global batch that will be read first; the index of its epoch is made meanwhile.

    Raises:
        ConfigError: the configuration does not fit this group, or this machine.
    """
    require_even_share(config, rank.world_size)
    inputs = open_inputs(config, verify=False, resolve=resolve_model, cache=cache)
    objective = OBJECTIVES[config.objective.kind]
    device = device_of(rank)

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
    model = inputs.build_model()
    init_weights(model, config.seed)
    attention = prepare_network(model, inputs.model, config, device)
    engine = Engine(model, EngineSettings.of(config), rank)
    terms = objective.terms(config.objective)
    held_out = {"": inputs.held_out}
    if config.evaluation.per_source:
        held_out |= inputs.held_out_by_source
    cache.evict_unused()
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
    weights = {name: term.weight for name, term in terms.items()}
    return Parts(inputs, engine, attention, weights, loader, evaluation)


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
    if trains_on_cuda():
        return torch.device("cuda", rank.local_rank)
    return torch.device("cpu")


def seed_dropout(seed: int, step: int, micro_batch: int) -> None:
    """Make dropout a function of (seed, step, micro-batch), on whichever rank the micro-batch runs."""
    torch.manual_seed(Noise.of("dropout", seed, step, micro_batch).seed())
