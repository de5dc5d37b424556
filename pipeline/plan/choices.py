"""Alternatives to the configuration: ZeRO stages, offload, the largest micro-batch; and advice about memory."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pipeline.plan.memory import DeviceMemory, HostMemory, Sharding, device_memory, host_memory
from pipeline.plan.network import Network
from pipeline.run.config import PretrainConfig
from pipeline.run.settings import OffloadConfig, ZeroConfig

_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Machines:
    """The hardware that a run is planned for."""

    nodes: int
    devices_per_node: int
    """GPUs, or workers on a CPU."""
    device_bytes: int
    """Memory of one device, or of its machine for each worker on a CPU."""
    on_cuda: bool

    @property
    def world_size(self) -> int:
        return self.nodes * self.devices_per_node

    def fits(self, memory: DeviceMemory) -> bool:
        """Whether a rank's device has room."""
        return memory.total <= self.device_bytes


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


def sharding_of(config: PretrainConfig, network: Network, machines: Machines) -> Sharding:
    """The sharding of the network over the machines, as configured."""
    return Sharding(config, network, machines.world_size, on_cuda=machines.on_cuda)


def memory_of(config: PretrainConfig, network: Network, machines: Machines) -> DeviceMemory:
    """Peak memory of a rank's device, in the phase with the longest samples."""
    found = network.activations(
        config.batch.micro_batch_size,
        max(config.length_of(phase) for phase in config.phases),
        recomputes=config.compute.gradient_checkpointing,
    )
    return device_memory(sharding_of(config, network, machines), *found)


def chosen_option(config: PretrainConfig, network: Network, machines: Machines) -> Option:
    """The choice of the configuration itself."""
    places = {"optimizer": config.zero.offload_optimizer, "weights": config.zero.offload_parameters}
    offloaded = " and ".join(name for name, place in places.items() if place is not None)
    name = f"stage {config.zero.stage}" + (f", {offloaded} on the host" if offloaded else "")
    return _option(name, (), config, network, machines)


def options(config: PretrainConfig, network: Network, machines: Machines) -> list[Option]:
    """All ways to spread the state that the optimizer allows, from the least communication to the most."""
    needs_whole, before = config.optimizer.NEEDS_WHOLE, config.zero
    nothing = {"offload_optimizer": None, "offload_parameters": None}
    undone = [f"zero.{name}=null" for name in nothing if getattr(before, name)]
    ways: list[tuple[str, tuple[str, ...], dict[str, object]]] = [
        (f"stage {stage}", (f"zero.stage={stage}", *undone), {"stage": stage})
        for stage in ((0,) if needs_whole else (0, 1, 2, 3) if machines.world_size == 1 else (1, 0, 2, 3))
    ]
    if machines.on_cuda and not needs_whole:
        on_host = OffloadConfig(device="cpu")
        for stage in (1, 2, 3):
            settings = (f"zero.stage={stage}", "zero.offload_optimizer.device=cpu")
            offload = {"stage": stage, "offload_optimizer": on_host}
            ways.append((f"stage {stage}, optimizer on the host", settings, offload))
        settings = ("zero.stage=3", "zero.offload_optimizer.device=cpu", "zero.offload_parameters.device=cpu")
        offload = {"stage": 3, "offload_optimizer": on_host, "offload_parameters": on_host}
        ways.append(("stage 3, optimizer and weights on the host", settings, offload))
    found = []
    for name, settings, chosen in ways:
        zero = before.model_copy(update=nothing | chosen)
        found.append(_option(name, settings, config.model_copy(update={"zero": zero}), network, machines))
    return found


def _option(
    name: str, settings: tuple[str, ...], way: PretrainConfig, network: Network, machines: Machines
) -> Option:
    memory = memory_of(way, network, machines)
    return Option(
        name=name,
        settings=settings,
        zero=way.zero,
        memory=memory,
        host=host_memory(sharding_of(way, network, machines), machines.devices_per_node),
        fits=machines.fits(memory),
        traffic=1.5 if way.zero.stage == 3 else 1.0,
        micro_batch_size=largest_micro_batch(way, network, machines),
    )


def cheapest(found: Sequence[Option]) -> Option | None:
    """The first that fits; None where nothing does."""
    return next((option for option in found if option.fits), None)


def largest_micro_batch(config: PretrainConfig, network: Network, machines: Machines) -> int | None:
    """The largest micro-batch that fits and divides what every rank gets of all global batches."""
    sizes = [config.batch.samples, *(stage.samples for stage in config.batch.warmup)]
    if any(size % machines.world_size for size in sizes):
        return None
    shares = [size // machines.world_size for size in sizes]
    able = [size for size in range(1, min(shares) + 1) if not any(share % size for share in shares)]

    def fits(rows: int) -> bool:
        batch = config.batch.model_copy(update={"micro_batch_size": rows})
        return machines.fits(memory_of(config.model_copy(update={"batch": batch}), network, machines))

    # Memory grows with the samples.
    count = bisect_left(able, True, key=lambda rows: not fits(rows))
    return able[count - 1] if count else None


def memory_findings(
    config: PretrainConfig, machines: Machines, chosen: Option, others: Sequence[Option]
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
