"""Alternatives to the configuration: ZeRO stages, offload, and the largest micro-batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pipeline.plan.memory import DeviceMemory, HostMemory, device_memory, host_memory
from pipeline.plan.network import Network
from pipeline.plan.sharding import Sharding
from pipeline.run.config import PretrainConfig
from pipeline.run.settings import OffloadConfig, ZeroConfig


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
    """How a configuration spreads the network over the machines."""
    return Sharding(config, network.groups, machines.world_size, machines.on_cuda, network.shapes)


def longest_phase(config: PretrainConfig) -> int:
    """The longest sequence length of the run."""
    return max(config.length_of(phase) for phase in config.phases)


def memory_of(config: PretrainConfig, network: Network, machines: Machines) -> DeviceMemory:
    """Peak memory of a rank's device."""
    trace = network.trace(config.batch.micro_batch_size, longest_phase(config))
    return device_memory(config, network, sharding_of(config, network, machines), trace)


def chosen_option(config: PretrainConfig, network: Network, machines: Machines) -> Option:
    """The choice of the configuration itself."""
    return _option(_name(config.zero), (), config, network, machines, 1.5 if config.zero.stage == 3 else 1.0)


def _name(zero: ZeroConfig) -> str:
    places = {"optimizer": zero.offload_optimizer, "weights": zero.offload_parameters}
    offloaded = [name for name, place in places.items() if place is not None]
    return f"stage {zero.stage}" + (f", {' and '.join(offloaded)} on the host" if offloaded else "")


def _option(
    name: str,
    settings: tuple[str, ...],
    way: PretrainConfig,
    network: Network,
    machines: Machines,
    traffic: float,
) -> Option:
    memory = memory_of(way, network, machines)
    host = host_memory(way, sharding_of(way, network, machines), machines.devices_per_node)
    largest = largest_micro_batch(way, network, machines)
    return Option(name, settings, way.zero, memory, host, machines.fits(memory), traffic, largest)


def options(config: PretrainConfig, network: Network, machines: Machines) -> list[Option]:
    """All ways to spread the state that the optimizer allows, from the least communication to the most."""
    return [
        _option(name, settings, config.model_copy(update={"zero": zero}), network, machines, traffic)
        for name, settings, zero, traffic in _ways(config, machines)
    ]


def _ways(
    config: PretrainConfig, machines: Machines
) -> Iterator[tuple[str, tuple[str, ...], ZeroConfig, float]]:
    optimizer, before = config.optimizer, config.zero
    on_host = OffloadConfig(device="cpu")
    alone = machines.world_size == 1
    stages = (0,) if optimizer.NEEDS_WHOLE else (0, 1, 2, 3) if alone else (1, 0, 2, 3)
    for stage in stages:
        zero = before.model_copy(
            update={"stage": stage, "offload_optimizer": None, "offload_parameters": None}
        )
        settings = (f"zero.stage={stage}", *_without_offload(before))
        yield f"stage {stage}", settings, zero, 1.5 if stage == 3 else 1.0
    if not optimizer.OFFLOADABLE or not machines.on_cuda:
        return
    for stage in (1, 2, 3):
        zero = before.model_copy(
            update={"stage": stage, "offload_optimizer": on_host, "offload_parameters": None}
        )
        settings = (f"zero.stage={stage}", "zero.offload_optimizer.device=cpu")
        yield f"stage {stage}, optimizer on the host", settings, zero, 1.5 if stage == 3 else 1.0
    zero = zero.model_copy(update={"offload_parameters": on_host})
    settings = (*settings, "zero.offload_parameters.device=cpu")
    yield "stage 3, optimizer and weights on the host", settings, zero, 1.5


def _without_offload(zero: ZeroConfig) -> tuple[str, ...]:
    return tuple(
        f"zero.{name}=null" for name in ("offload_optimizer", "offload_parameters") if getattr(zero, name)
    )


def cheapest(found: list[Option]) -> Option | None:
    """The first that fits; None where nothing does."""
    return next((option for option in found if option.fits), None)


def largest_micro_batch(config: PretrainConfig, network: Network, machines: Machines) -> int | None:
    """The largest micro-batch that fits and divides what every rank gets of all global batches.

    Memory grows with a straight line in the samples, but for the chunks of the loss; the line is drawn through two
    traces, and where it ends is traced too.
    """
    able = _divisors(config, machines.world_size)
    if not able:
        return None

    def total(rows: int) -> int:
        batch = config.batch.model_copy(update={"micro_batch_size": rows})
        return memory_of(config.model_copy(update={"batch": batch}), network, machines).total

    size = config.batch.micro_batch_size
    low, high = (1, 2) if size == 1 else (size // 2, size)
    slope = max((total(high) - total(low)) / (high - low), 1.0)
    reach = high + (machines.device_bytes - total(high)) / slope
    for rows in reversed([size for size in able if size <= reach * 1.1]):
        if total(rows) <= machines.device_bytes:
            return rows
    return None


def _divisors(config: PretrainConfig, world_size: int) -> list[int]:
    """Sizes of micro-batches that share out every global batch evenly, ascending."""
    sizes = [config.batch.samples, *(stage.samples for stage in config.batch.warmup)]
    if any(size % world_size for size in sizes):
        return []
    shares = [size // world_size for size in sizes]
    return [size for size in range(1, min(shares) + 1) if not any(share % size for share in shares)]
