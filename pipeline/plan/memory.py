"""Memory of a rank: what each part of a step takes, and when it takes most."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal

from pipeline.plan.network import Network
from pipeline.plan.sharding import ITEM_BYTES, Sharding
from pipeline.plan.trace import Trace
from pipeline.run.config import PretrainConfig

_MIB = 1 << 20
CONTEXT_BYTES = 600 * _MIB
"""CUDA's context with PyTorch's, cuBLAS's and DeepSpeed's kernels on one GPU, and cuBLAS's workspace."""
COLLECTIVES_BYTES = 500 * _MIB
"""NCCL's buffers, where there is more than one rank."""
FRAGMENTATION = 0.05
"""Share of the allocated memory that the allocator holds besides, because blocks do not fit together."""
PROCESS_BYTES = 800 * _MIB
"""A worker's interpreter with torch, DeepSpeed, Ray and MLflow, in host memory."""
CUDA_PROCESS_BYTES = 2_500 * _MIB
"""The same with CUDA's libraries."""
PREFETCHED_BATCHES = 2
"""Micro-batches that wait on the device."""

Moment = Literal["forward and backward", "reduction", "update", "start"]


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Bytes on a rank's device when most of it is taken."""

    moment: Moment
    weights: int
    """With those that ZeRO-3 has gathered from other ranks."""
    master_weights: int
    optimizer_state: int
    average: int
    gradients: int
    """With the buckets and copies that they go through."""
    activations: int
    """With temporary results."""
    inputs: int
    context: int
    """What CUDA and NCCL take outside PyTorch's allocator; on a CPU, the process."""
    fragmentation: int

    @property
    def allocated(self) -> int:
        """What PyTorch's allocator hands out: `torch.cuda.max_memory_allocated`."""
        return self.total - self.context - self.fragmentation

    @property
    def total(self) -> int:
        """All that must fit."""
        return sum(self.parts.values())

    @property
    def parts(self) -> dict[str, int]:
        """Bytes by what they are, as the fields name it."""
        return {name: size for name, size in asdict(self).items() if name != "moment"}


def device_memory(config: PretrainConfig, network: Network, sharding: Sharding, trace: Trace) -> DeviceMemory:
    """What a rank's device holds at the worst moment of a step.

    Args:
        config: may differ from the network's in how training is spread and cut.
        trace: of the run's longest micro-batch.
    """
    shards = sharding.shards()
    num_micro_batches = config.batch.samples // (config.batch.micro_batch_size * sharding.world_size)
    finished = [done for done, _ in trace.peaks]
    held = sharding.held(finished, accumulates=num_micro_batches > 1)
    gathered = sharding.gathered(finished)
    alive = [each for _, each in trace.peaks]
    stretches = [*zip(alive, held, gathered, strict=True)]
    stretches.append((trace.gathering_bytes, held[0], gathered[0] + sharding.arriving()))
    moments: dict[Moment, tuple[int, int, int]] = {
        "forward and backward": max(stretches, key=sum),
        "reduction": (0, sharding.reduction(), 0),
        "update": (0, sharding.update(), 0),
        "start": (0, 0, max(0, sharding.start() - shards.device)),
    }
    moment = max(moments, key=lambda name: sum(moments[name]))
    activations, gradients, weights = moments[moment]
    inputs = PREFETCHED_BATCHES * trace.inputs_bytes if sharding.on_cuda else trace.inputs_bytes
    teacher = ITEM_BYTES[config.precision] * network.teacher_elements
    allocated = shards.device + teacher + inputs + activations + gradients + weights
    return DeviceMemory(
        moment=moment,
        weights=shards.weights + teacher + weights,
        master_weights=shards.master_weights,
        optimizer_state=shards.optimizer_state,
        average=shards.average,
        gradients=gradients + shards.gradients + shards.buffers,
        activations=activations,
        inputs=inputs,
        context=_context(sharding),
        fragmentation=int(FRAGMENTATION * allocated) if sharding.on_cuda else 0,
    )


def _context(sharding: Sharding) -> int:
    if not sharding.on_cuda:
        return PROCESS_BYTES
    return CONTEXT_BYTES + (COLLECTIVES_BYTES if sharding.world_size > 1 else 0)


@dataclass(frozen=True, slots=True)
class HostMemory:
    """Bytes in the memory of one machine, all its ranks together."""

    processes: int
    offloaded: int
    checkpoint_copies: int
    """Of the state that is written while training goes on."""
    start: int
    """The network in float32, in every rank, before it moves to its device; gone when training begins."""

    @property
    def total(self) -> int:
        """The larger of start and training."""
        return self.processes + max(self.start, self.offloaded + self.checkpoint_copies)


def host_memory(config: PretrainConfig, sharding: Sharding, ranks_per_node: int) -> HostMemory:
    """What the ranks of one machine take of its memory, besides what a CPU rank has as its device."""
    copies = saved_bytes(config, sharding) if config.checkpoint.asynchronous else 0
    return HostMemory(
        processes=ranks_per_node * (CUDA_PROCESS_BYTES if sharding.on_cuda else PROCESS_BYTES),
        offloaded=ranks_per_node * sharding.shards().host,
        checkpoint_copies=ranks_per_node * copies,
        start=ranks_per_node * 4 * sharding.num_parameters,
    )


def saved_bytes(config: PretrainConfig, sharding: Sharding) -> int:
    """What one rank adds to a checkpoint in DeepSpeed's files: the float32 shard, its moments and average. Stage 3
    saves its shard of the weights beside them; elsewhere weights are not saved twice."""
    weights = sharding.item * sharding.shard if config.zero.stage == 3 else 0
    return 4 * sharding.shard + sharding.moments + sharding.average + weights
