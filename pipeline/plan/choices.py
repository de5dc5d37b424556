"""Alternatives to the configuration: ZeRO stages, offload, and the largest micro-batch."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

from pipeline.plan.memory import DeviceMemory, HostMemory, Sharding, device_memory, host_memory
from pipeline.plan.network import Network
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
    return [
        _option(name, settings, config.model_copy(update={"zero": zero}), network, machines)
        for name, settings, zero in _ways(config, machines)
    ]


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


def _ways(config: PretrainConfig, machines: Machines) -> Iterator[tuple[str, tuple[str, ...], ZeroConfig]]:
    optimizer, before = config.optimizer, config.zero
    stages = (0,) if optimizer.NEEDS_WHOLE else (0, 1, 2, 3) if machines.world_size == 1 else (1, 0, 2, 3)
    nothing = {"offload_optimizer": None, "offload_parameters": None}
    for stage in stages:
        undone = (f"zero.{name}=null" for name in nothing if getattr(before, name))
        zero = before.model_copy(update={"stage": stage, **nothing})
        yield f"stage {stage}", (f"zero.stage={stage}", *undone), zero
    if optimizer.NEEDS_WHOLE or not machines.on_cuda:
        return
    on_host = OffloadConfig(device="cpu")
    for stage in (1, 2, 3):
        zero = before.model_copy(update={"stage": stage, **nothing, "offload_optimizer": on_host})
        settings = (f"zero.stage={stage}", "zero.offload_optimizer.device=cpu")
        yield f"stage {stage}, optimizer on the host", settings, zero
    zero = zero.model_copy(update={"offload_parameters": on_host})
    yield (
        "stage 3, optimizer and weights on the host",
        (*settings, "zero.offload_parameters.device=cpu"),
        zero,
    )


def cheapest(found: list[Option]) -> Option | None:
    """The first that fits; None where nothing does."""
    return next((option for option in found if option.fits), None)


def largest_micro_batch(config: PretrainConfig, network: Network, machines: Machines) -> int | None:
    """The largest micro-batch that fits and divides what every rank gets of all global batches."""
    able = _divisors(config, machines.world_size)

    def fits(rows: int) -> bool:
        batch = config.batch.model_copy(update={"micro_batch_size": rows})
        return machines.fits(memory_of(config.model_copy(update={"batch": batch}), network, machines))

    # Memory grows with the samples.
    count = bisect_left(able, True, key=lambda rows: not fits(rows))
    return able[count - 1] if count else None


def _divisors(config: PretrainConfig, world_size: int) -> list[int]:
    """Sizes of micro-batches that share out every global batch evenly, ascending."""
    sizes = [config.batch.samples, *(stage.samples for stage in config.batch.warmup)]
    if any(size % world_size for size in sizes):
        return []
    shares = [size // world_size for size in sizes]
    return [size for size in range(1, min(shares) + 1) if not any(share % size for share in shares)]
