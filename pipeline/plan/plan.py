"""A plan: everything that `cloze plan` says of a run, and its advice for one that ran out of memory."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from cluster.node_load import memory
from pipeline.engine.gpus import CPU, Gpu, find_gpu
from pipeline.plan.choices import Machines, Option, cheapest, chosen_option, options, sharding_of
from pipeline.plan.duration import Duration, duration_of
from pipeline.plan.findings import StoreUse, findings, memory_findings, store_uses
from pipeline.plan.memory import Disk, disk_of
from pipeline.plan.network import make_network
from pipeline.run.config import PretrainConfig

_GIB = 1 << 30


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
        vocab_size: entries that the configuration of tokens asks for which are not there yet.

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
        warnings=list(findings(config, machines, chosen, others, duration, disk, stores)),
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
        # It stands beside another error, which must not be hidden by this one.
        return f"No estimate of the memory could be made ({type(error).__name__}: {error})."


def _advice(config: PretrainConfig, device_bytes: int | None) -> str:
    on_cuda, name, own_bytes = _device(config)
    size = device_bytes or own_bytes
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


def _device(config: PretrainConfig) -> tuple[bool, str, int]:
    """Whether the run is on GPUs, what its workers' device is called, and its memory for each worker."""
    import psutil
    import torch

    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        known = find_gpu(properties.name)
        return True, properties.name if known is None else known.name, properties.total_memory
    return False, "the machine", psutil.virtual_memory().total // config.cluster.workers
