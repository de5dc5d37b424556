"""A plan: everything that `cloze plan` says of a run, alternatives to its configuration (ZeRO stages, offload, the
largest micro-batch), and advice for a run that ran out of memory."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from cluster.node_load import memory
from pipeline.engine.gpus import CPU, Gpu, find_gpu
from pipeline.plan.duration import Duration, StoreUse, duration_of, store_uses
from pipeline.plan.memory import DeviceMemory, Disk, HostMemory, Machines, Sharding
from pipeline.plan.network import Network, make_network
from pipeline.run.config import PretrainConfig
from pipeline.run.settings import must_be_multiple
from pipeline.run.shared_settings import OffloadConfig, ZeroConfig
from pipeline.samples.batch_plan import UNBOUNDED_STEPS

_GIB = 1 << 30
_WORTHWHILE_EPOCHS, _USELESS_EPOCHS = 4, 40
"""Repeating text up to 4 times is about as good as new text, beyond 40 times it teaches nothing (Muennighoff et al.
2023, section 6)."""


@dataclass(frozen=True, slots=True)
class Option:
    """A way to spread the state of training."""

    name: str
    """As people say it: `stage 2`, `stage 3, optimizer on the host`."""
    settings: tuple[str, ...]
    """The overrides to type for it."""
    zero: ZeroConfig
    memory: DeviceMemory
    host: HostMemory
    fits: bool
    traffic: float
    """Network bytes per rank, step and byte of weights, beside the bytes of plain data parallelism (Rajbhandari
    et al. 2020, section 7)."""
    micro_batch_size: int | None
    """Largest that fits and divides a rank's samples; None where none fits."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of a run: its needs, and alternatives."""

    name: str
    objective: str
    network: str
    parameters: int
    vocabulary: int
    vocabulary_note: str
    """Empty if the size comes from the prepared tokens."""
    gpu: str
    machines: Machines
    attention: str
    attention_reason: str
    chosen: Option
    options: list[Option]
    """Ways to spread the state, from the least communication to the most."""
    cheapest: str | None
    """The first of them that fits."""
    duration: Duration
    disk: Disk
    stores: list[StoreUse]
    warnings: list[str]


def make_plan(
    config: PretrainConfig,
    gpu: Gpu,
    nodes: int,
    devices_per_node: int,
    *,
    memory_bytes: int | None = None,
    mfu: float | None = None,
    vocab_size: int | None = None,
) -> Plan:
    """Plan a run on machines that need not be there.

    Args:
        config: its `cluster.workers` is not looked at.
        memory_bytes: of one device, in place of the card's own.
        mfu: share of the peak to be expected; None takes the MFU of earlier runs, or a usual one.
        vocab_size: entries of the vocabulary, if the tokens do not exist yet.

    Raises:
        ConfigError, MismatchError, ReferenceNotFoundError: objective, network and tokens do not fit.
    """
    on_cuda = gpu is not CPU
    # Workers on a CPU are taken to share a machine like this one.
    usual = gpu.memory_bytes if on_cuda else memory().total // devices_per_node
    machines = Machines(nodes, devices_per_node, memory_bytes or usual, on_cuda)
    cluster = config.cluster.model_copy(
        update={"workers": machines.world_size, "gpus_per_worker": int(on_cuda)}
    )
    config = config.model_copy(update={"cluster": cluster})
    network = make_network(config, on_cuda=on_cuda, vocab_size=vocab_size, capability=gpu.capability)
    duration = duration_of(config, network, gpu, machines.world_size, mfu)
    others = options(config, network, machines)
    plan = Plan(
        name=config.name,
        objective=config.objective.kind,
        network=config.model.network,
        parameters=network.num_parameters,
        vocabulary=network.vocabulary.size,
        vocabulary_note=network.vocabulary_note,
        gpu=gpu.name,
        machines=machines,
        attention=network.attention.backend,
        attention_reason=network.attention.reason,
        chosen=option_of(config, network, machines),
        options=others,
        cheapest=next((each.name for each in others if each.fits), None),
        duration=duration,
        disk=Sharding(config, network, machines).disk(),
        stores=store_uses(config, duration),
        warnings=[],
    )
    plan.warnings.extend(_findings(config, plan))
    return plan


def to_json(plan: Plan) -> dict[str, Any]:
    """The plan in plain values, with sums."""
    plain = asdict(plan)
    for option, value in [(plan.chosen, plain["chosen"]), *zip(plan.options, plain["options"], strict=True)]:
        value["zero"] = option.zero.model_dump(mode="json")
        value["memory"] |= {"allocated": option.memory.allocated, "total": option.memory.total}
        value["host"]["total"] = option.host.total
    plain["machines"]["world_size"] = plan.machines.world_size
    return plain


def advise(config: PretrainConfig) -> str:
    """Settings that would fit on the run's workers on this machine, in a few lines; never raises."""
    try:
        on_cuda = torch.cuda.is_available()
        if on_cuda:
            properties = torch.cuda.get_device_properties(0)
            known, size = find_gpu(properties.name), properties.total_memory
            name = properties.name if known is None else known.name
        else:
            name, size = "the machine", memory().total // config.cluster.workers
        machines = Machines(1, config.cluster.workers, size, on_cuda)
        network = make_network(config, on_cuda=on_cuda)
        chosen = option_of(config, network, machines)
        lines = [
            f"A worker needs about {chosen.memory.total / _GIB:.1f} GiB at its peak ({chosen.memory.moment});"
            f" {name} has {size / _GIB:.1f} GiB for each."
        ]
        if chosen.fits:
            lines.append(
                "By this estimate it fits: look for other processes on the device, or unusually long texts."
            )
        else:
            lines += memory_findings(config, machines, chosen, options(config, network, machines))
        return "\n".join(lines)
    except Exception as error:
        # It comes with another error, which it must not hide.
        return f"No estimate of the memory could be made ({type(error).__name__}: {error})."


def options(config: PretrainConfig, network: Network, machines: Machines) -> list[Option]:
    """All ways to spread the state that the optimizer allows, from the least communication to the most."""
    needs_whole, before, on_host = config.optimizer.NEEDS_WHOLE, config.zero, OffloadConfig(device="cpu")
    stages = (0,) if needs_whole else (0, 1, 2, 3) if machines.world_size == 1 else (1, 0, 2, 3)
    ways = [(stage, False, False) for stage in stages]
    if machines.on_cuda and not needs_whole:
        ways += [*((stage, True, False) for stage in (1, 2, 3)), (3, True, True)]
    found = []
    for stage, optimizer, weights in ways:
        offloads = {"offload_optimizer": optimizer, "offload_parameters": weights}
        typed = [
            f"zero.{name}.device=cpu" if is_chosen else f"zero.{name}=null"
            for name, is_chosen in offloads.items()
            if is_chosen or getattr(before, name)
        ]
        chosen = {name: on_host if is_chosen else None for name, is_chosen in offloads.items()}
        zero = before.model_copy(update={"stage": stage} | chosen)
        way = config.model_copy(update={"zero": zero})
        found.append(option_of(way, network, machines, (f"zero.stage={stage}", *typed)))
    return found


def option_of(
    way: PretrainConfig, network: Network, machines: Machines, settings: tuple[str, ...] = ()
) -> Option:
    """The way to spread the state that a configuration chooses, and how far it fits.

    Args:
        settings: the overrides to type for it.
    """
    sharding, zero = Sharding(way, network, machines), way.zero
    memory = sharding.device()
    places = {"optimizer": zero.offload_optimizer, "weights": zero.offload_parameters}
    offloaded = " and ".join(name for name, place in places.items() if place is not None)
    return Option(
        name=f"stage {zero.stage}" + (f", {offloaded} on the host" if offloaded else ""),
        settings=settings,
        zero=zero,
        memory=memory,
        host=sharding.host(),
        fits=memory.total <= machines.device_bytes,
        traffic=1.5 if zero.stage == 3 else 1.0,
        micro_batch_size=largest_micro_batch(way, network, machines),
    )


def largest_micro_batch(config: PretrainConfig, network: Network, machines: Machines) -> int | None:
    """The largest micro-batch that fits and divides what every rank gets of all global batches."""
    sizes = [config.batch.samples, *(stage.samples for stage in config.batch.warmup)]
    if any(size % machines.world_size for size in sizes):
        return None
    shares = [size // machines.world_size for size in sizes]
    able = [size for size in range(1, min(shares) + 1) if not any(share % size for share in shares)]

    def fits(rows: int) -> bool:
        batch = config.batch.model_copy(update={"micro_batch_size": rows})
        memory = Sharding(config.model_copy(update={"batch": batch}), network, machines).device()
        return memory.total <= machines.device_bytes

    # Memory grows with the samples.
    count = bisect_left(able, True, key=lambda rows: not fits(rows))
    return able[count - 1] if count else None


def memory_findings(
    config: PretrainConfig, machines: Machines, chosen: Option, others: Sequence[Option]
) -> Iterator[str]:
    """The sentences about memory."""
    best = next((each for each in others if each.fits), None)
    size, largest = config.batch.micro_batch_size, chosen.micro_batch_size
    if not chosen.fits:
        needed, there = chosen.memory.total / _GIB, machines.device_bytes / _GIB
        text = f"{needed:.1f} GiB do not fit into the {there:.1f} GiB of a device"
        ways = [] if largest is None else [f"batch.micro_batch_size={largest}"]
        ways += [] if best is None else [" ".join(best.settings)]
        state = chosen.memory.total - chosen.memory.activations
        if not config.compute.gradient_checkpointing and state < machines.device_bytes:
            ways.append("compute.gradient_checkpointing=true")
        if ways:
            yield f"{text}; {'; or '.join(ways)} would help"
        else:
            yield f"{text}, whatever is sharded or offloaded"
    elif chosen.zero.offload_optimizer is not None:
        without = next((each for each in others if each.fits and each.zero.offload_optimizer is None), None)
        if without is not None:
            yield f"offload is not needed and slows every update: {without.name} fits ({' '.join(without.settings)})"
    elif chosen.zero.stage == 3 and best is not None and best.zero.stage in (1, 2):
        yield (
            f"stage 3 is not needed and communicates half as much again: {best.name} fits"
            f" ({' '.join(best.settings)})"
        )
    if chosen.fits and largest is not None and largest >= 2 * size:
        yield (
            f"a micro-batch of {largest} samples fits, and {size} is set: larger ones are faster"
            f" (batch.micro_batch_size={largest})"
        )
    if config.compute.compile:
        yield "torch.compile is not modelled: the figures here are an upper bound, it mostly needs less"


def _findings(config: PretrainConfig, plan: Plan) -> Iterator[str]:
    """All sentences, the most serious first: about batch, memory, disk, data and budget."""
    machines, disk, duration = plan.machines, plan.disk, plan.duration
    batch = config.batch
    step = batch.micro_batch_size * machines.world_size
    warmup = {f"batch.warmup.{number}.samples": one.samples for number, one in enumerate(batch.warmup)}
    for key, size in ({"batch.samples": batch.samples} | warmup).items():
        if size % step:
            factors = (
                f"batch.micro_batch_size {batch.micro_batch_size} x {machines.world_size} workers = {step}"
            )
            yield f"{key} {size} {must_be_multiple(size, step, factors)}"
    yield from memory_findings(config, machines, plan.chosen, plan.options)
    if disk.total is not None and disk.free is not None and disk.total > disk.free:
        yield (
            f"checkpoints will take {disk.total / _GIB:.1f} GiB, and {disk.free / _GIB:.1f} GiB are free: lower"
            " checkpoint.keep_last, raise checkpoint.keep_every_steps, or set checkpoint.directory"
        )
    for store in plan.stores:
        epochs = store.epochs or 0.0
        if store.tokens is None:
            yield f"{store.path} is not there yet: epochs are not known"
        elif epochs > _USELESS_EPOCHS:
            beyond = f"{epochs:.0f} times: beyond {_USELESS_EPOCHS} nothing more is learned"
            yield f"{store.path} is read {beyond} (Muennighoff et al. 2023)"
        elif epochs > _WORTHWHILE_EPOCHS:
            beyond = f"{epochs:.1f} times: beyond {_WORTHWHILE_EPOCHS}, new text would teach more"
            yield f"{store.path} is read {beyond} (Muennighoff et al. 2023)"
    limit = None if config.budget is None else config.budget.time_s
    hours = duration.unlimited_hours if config.num_steps < UNBOUNDED_STEPS else None
    if limit is not None and hours is not None and hours > limit / 3600 * 1.02:
        yield (
            f"the {config.num_steps:,} steps take about {hours:.1f} hours, and the budget ends after {limit / 3600:.1f}"
        )
