"""A plan: everything that `cloze plan` says of a run, and its advice for one that ran out of memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from cluster.node_load import memory
from pipeline.engine.gpus import CPU, Gpu, find_gpu
from pipeline.plan.choices import (
    Machines,
    Option,
    cheapest,
    chosen_option,
    memory_findings,
    options,
    sharding_of,
)
from pipeline.plan.duration import Duration, StoreUse, duration_of, store_uses
from pipeline.plan.memory import Disk, disk_of
from pipeline.plan.network import make_network
from pipeline.run.config import PretrainConfig
from pipeline.run.settings import must_be_multiple
from pipeline.run.token_plan import UNBOUNDED_STEPS

_GIB = 1 << 30
_WORTHWHILE_EPOCHS, _USELESS_EPOCHS = 4, 40
"""Repeating text up to 4 times is about as good as new text, beyond 40 times it teaches nothing (Muennighoff et al.
2023, section 6)."""


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
    chosen = chosen_option(config, network, machines)
    others = options(config, network, machines)
    duration = duration_of(config, network, gpu, machines.world_size, mfu)
    disk = disk_of(config, sharding_of(config, network, machines))
    stores = store_uses(config, duration)
    best = cheapest(others)
    return Plan(
        name=config.name,
        objective=config.objective.kind,
        network=config.model.network,
        parameters=network.num_parameters,
        vocabulary=network.reader.vocabulary.size,
        vocabulary_note=network.reader.note,
        gpu=gpu.name,
        machines=machines,
        attention=network.attention.backend,
        attention_reason=network.attention.reason,
        chosen=chosen,
        options=others,
        cheapest=None if best is None else best.name,
        duration=duration,
        disk=disk,
        stores=stores,
        warnings=[
            *_batch_findings(config, machines),
            *memory_findings(config, machines, chosen, others),
            *_other_findings(config, duration, disk, stores),
        ],
    )


def to_json(plan: Plan) -> dict[str, Any]:
    """The plan in plain values, with sums."""
    plain = asdict(plan)
    for option, value in [(plan.chosen, plain["chosen"]), *zip(plan.options, plain["options"], strict=True)]:
        value["zero"] = option.zero.model_dump(mode="json")
        value["memory"] |= {"allocated": option.memory.allocated, "total": option.memory.total}
        value["host"]["total"] = option.host.total
    plain["machines"]["world_size"] = plan.machines.world_size
    return plain


def advise(config: PretrainConfig, device_bytes: int | None = None) -> str:
    """Settings that would fit on the run's workers, in a few lines; never raises.

    Args:
        device_bytes: memory of one device; None asks this machine.
    """
    try:
        return _advice(config, device_bytes)
    except Exception as error:
        # It comes with another error, which it must not hide.
        return f"No estimate of the memory could be made ({type(error).__name__}: {error})."


def _advice(config: PretrainConfig, device_bytes: int | None) -> str:
    import psutil
    import torch

    on_cuda, name = torch.cuda.is_available(), "the machine"
    if on_cuda:
        properties = torch.cuda.get_device_properties(0)
        known = find_gpu(properties.name)
        name, size = properties.name if known is None else known.name, properties.total_memory
    else:
        size = psutil.virtual_memory().total // config.cluster.workers
    size = device_bytes or size
    machines = Machines(1, config.cluster.workers, size, on_cuda)
    network = make_network(config, on_cuda=on_cuda)
    chosen = chosen_option(config, network, machines)
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


def _batch_findings(config: PretrainConfig, machines: Machines) -> Iterator[str]:
    step = config.batch.micro_batch_size * machines.world_size
    warmup = {f"batch.warmup.{number}.samples": one.samples for number, one in enumerate(config.batch.warmup)}
    for key, size in ({"batch.samples": config.batch.samples} | warmup).items():
        if size % step:
            factors = f"batch.micro_batch_size {config.batch.micro_batch_size} x {machines.world_size} workers = {step}"
            yield f"{key} {size} {must_be_multiple(size, step, factors)}"


def _other_findings(
    config: PretrainConfig, duration: Duration, disk: Disk, stores: Sequence[StoreUse]
) -> Iterator[str]:
    """Sentences about disk, data and budget."""
    if disk.total is not None and disk.free is not None and disk.total > disk.free:
        yield (
            f"checkpoints will take {disk.total / _GIB:.1f} GiB, and {disk.free / _GIB:.1f} GiB are free: lower"
            " checkpoint.keep_last, raise checkpoint.keep_every_steps, or set checkpoint.directory"
        )
    for store in stores:
        epochs = store.epochs or 0.0
        if store.tokens is None:
            yield f"{store.path} is not there yet: epochs are not known"
        elif epochs > _USELESS_EPOCHS:
            yield (
                f"{store.path} is read {epochs:.0f} times: beyond {_USELESS_EPOCHS} nothing more is learned"
                " (Muennighoff et al. 2023)"
            )
        elif epochs > _WORTHWHILE_EPOCHS:
            yield (
                f"{store.path} is read {epochs:.1f} times: beyond {_WORTHWHILE_EPOCHS}, new text would teach"
                " more (Muennighoff et al. 2023)"
            )
    limit = None if config.budget is None else config.budget.time_s
    if limit is None or duration.unlimited_hours is None or config.num_steps >= UNBOUNDED_STEPS:
        return
    if duration.unlimited_hours > limit / 3600 * 1.02:
        yield (
            f"the {config.num_steps:,} steps take about {duration.unlimited_hours:.1f} hours, and the budget ends"
            f" after {limit / 3600:.1f}"
        )
