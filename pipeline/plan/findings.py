"""Warnings and hints for an operator before the start, in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from cluster.artefacts.errors import ClozeError
from cluster.copies import committed_at, manifest_at
from data_prep.layout import TOKENS
from data_prep.token_store import TokenStore
from pipeline.plan.choices import Machines, Option, cheapest
from pipeline.plan.duration import Duration
from pipeline.plan.memory import Disk
from pipeline.run.config import PretrainConfig
from pipeline.run.settings import must_be_multiple
from pipeline.run.token_plan import UNBOUNDED_STEPS

_GIB = 1 << 30
_WORTHWHILE_EPOCHS, _USELESS_EPOCHS = 4, 40
"""Repeating text up to 4 times is about as good as new text, beyond 40 times it teaches nothing (Muennighoff et al.
2023, section 6)."""


@dataclass(frozen=True, slots=True)
class StoreUse:
    """Share of a token store that a run reads."""

    path: str
    tokens: int | None
    """Tokens of its documents that are trained on; None where it is not there."""
    read: int | None
    """Tokens that the run reads of it, by the weights of the stores; None where the run's length is not known."""
    epochs: float | None


def store_uses(config: PretrainConfig, duration: Duration) -> list[StoreUse]:
    """Every store of the mixture."""
    found = []
    for number, store in enumerate(config.data.stores):
        tokens = _tokens_of(config, number)
        read = None if duration.steps is None else round(_read_from(config, number, duration.steps))
        epochs = None if tokens is None or read is None else read / max(tokens, 1)
        found.append(StoreUse(str(store.path), tokens, read, epochs))
    return found


def _tokens_of(config: PretrainConfig, number: int) -> int | None:
    """Tokens of the documents of a store that are trained on; None where it is not there. Of a store at a URI, sources
    and languages are not distinguished."""
    wanted = config.data.stores[number]
    try:
        if isinstance(wanted.path, str):
            # A plan fetches no tokens: about as many are trained on as the manifest and the settings say.
            manifest = manifest_at(committed_at(wanted.path, TOKENS))
            tokens = manifest.stats.get("tokens") if manifest else None
            return None if tokens is None else round(tokens * (1 - config.data.held_out))
        store = TokenStore.open(wanted.path, verify=False)
    except (ClozeError, OSError):
        return None
    chosen = ~store.held_out(config.data.held_out)
    for names, (numbers, known) in ((wanted.sources, store.sources()), (wanted.langs, store.langs())):
        if names is not None:
            chosen &= np.isin(numbers, [known.index(name) for name in names if name in known])
    return int(store.lengths[chosen].sum())


def _read_from(config: PretrainConfig, number: int, steps: int) -> float:
    """Tokens of a store that the first `steps` steps read."""
    read, first = 0.0, 0
    own = [store.weight for store in config.data.stores]
    *shorter, _ = config.phases
    for phase in shorter:
        last = min(steps, first + phase.steps)
        weights = phase.weights or own
        tokens = config.tokens_before(last) - config.tokens_before(min(first, steps))
        read += tokens * weights[number] / sum(weights)
        first += phase.steps
    if steps > first:
        tokens = config.tokens_before(steps) - config.tokens_before(first)
        read += tokens * own[number] / sum(own)
    return read


def findings(
    config: PretrainConfig,
    machines: Machines,
    chosen: Option,
    others: Sequence[Option],
    duration: Duration,
    disk: Disk,
    stores: Sequence[StoreUse],
) -> Iterator[str]:
    """Warnings, the most serious first.

    Args:
        chosen: what the configuration says.
        others: what else could be chosen.
    """
    yield from _batch(config, machines)
    yield from memory_findings(config, machines, chosen, list(others))
    yield from _disk(disk)
    yield from _data(stores)
    yield from _budget(config, duration)


def _batch(config: PretrainConfig, machines: Machines) -> Iterator[str]:
    step = config.batch.micro_batch_size * machines.world_size
    sizes = {
        "batch.samples": config.batch.samples,
        **{f"batch.warmup.{number}.samples": one.samples for number, one in enumerate(config.batch.warmup)},
    }
    for key, size in sizes.items():
        if size % step:
            factors = f"batch.micro_batch_size {config.batch.micro_batch_size} x {machines.world_size} workers = {step}"
            yield f"{key} {size} {must_be_multiple(size, step, factors)}"


def memory_findings(
    config: PretrainConfig, machines: Machines, chosen: Option, others: list[Option]
) -> Iterator[str]:
    """The sentences about memory."""
    best = cheapest(others)
    size = config.batch.micro_batch_size
    if not chosen.fits:
        needed, there = chosen.memory.total / _GIB, machines.device_bytes / _GIB
        text = f"{needed:.1f} GiB do not fit into the {there:.1f} GiB of a device"
        ways = []
        if chosen.micro_batch_size is not None:
            ways.append(f"batch.micro_batch_size={chosen.micro_batch_size}")
        if best is not None:
            ways.append(" ".join(best.settings))
        state = chosen.memory.total - chosen.memory.activations
        if not config.compute.gradient_checkpointing and state < machines.device_bytes:
            ways.append("compute.gradient_checkpointing=true")
        yield (
            f"{text}; {'; or '.join(ways)} would help"
            if ways
            else f"{text}, whatever is sharded or offloaded"
        )
    elif chosen.fits and chosen.zero.offload_optimizer is not None:
        without = next((each for each in others if each.fits and each.zero.offload_optimizer is None), None)
        if without is not None:
            yield f"offload is not needed and slows every update: {without.name} fits ({' '.join(without.settings)})"
    elif chosen.fits and chosen.zero.stage == 3 and best is not None and best.zero.stage in (1, 2):
        yield (
            f"stage 3 is not needed and communicates half as much again: {best.name} fits"
            f" ({' '.join(best.settings)})"
        )
    if chosen.fits and chosen.micro_batch_size is not None and chosen.micro_batch_size >= 2 * size:
        yield (
            f"a micro-batch of {chosen.micro_batch_size} samples fits, and {size} is set: larger ones are faster"
            f" (batch.micro_batch_size={chosen.micro_batch_size})"
        )
    if config.compute.compile:
        yield "torch.compile is not modelled: the figures here are an upper bound, it mostly needs less"


def _disk(disk: Disk) -> Iterator[str]:
    if disk.total is not None and disk.free is not None and disk.total > disk.free:
        yield (
            f"checkpoints will take {disk.total / _GIB:.1f} GiB, and {disk.free / _GIB:.1f} GiB are free: lower"
            " checkpoint.keep_last, raise checkpoint.keep_every_steps, or set checkpoint.directory"
        )


def _data(stores: Sequence[StoreUse]) -> Iterator[str]:
    for store in stores:
        if store.tokens is None:
            yield f"{store.path} is not there yet: epochs are not known"
        elif store.epochs is not None and store.epochs > _USELESS_EPOCHS:
            yield (
                f"{store.path} is read {store.epochs:.0f} times: beyond {_USELESS_EPOCHS} nothing more is learned"
                " (Muennighoff et al. 2023)"
            )
        elif store.epochs is not None and store.epochs > _WORTHWHILE_EPOCHS:
            yield (
                f"{store.path} is read {store.epochs:.1f} times: beyond {_WORTHWHILE_EPOCHS}, new text would teach"
                " more (Muennighoff et al. 2023)"
            )


def _budget(config: PretrainConfig, duration: Duration) -> Iterator[str]:
    budget = config.budget
    if budget is None or budget.time_s is None or duration.flops is None or duration.device_hours is None:
        return
    hours = budget.time_s / 3600
    if config.num_steps >= UNBOUNDED_STEPS:
        return
    if duration.unlimited_hours is not None and duration.unlimited_hours > hours * 1.02:
        yield (
            f"the {config.num_steps:,} steps take about {duration.unlimited_hours:.1f} hours, and the budget ends"
            f" after {hours:.1f}"
        )
