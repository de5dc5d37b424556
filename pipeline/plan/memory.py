"""Memory of a rank and of its machine, in closed form: state by ZeRO stage (Rajbhandari et al. 2020, section 3), with
the buffers that gradients go through, and activations.

Weights have the run's precision; master weights, moments, the average and the sums of gradients are float32. Checked
against real steps by tests/benchmarks/plan_memory.py.
"""

from __future__ import annotations

import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from pipeline.engine.device import DTYPES
from pipeline.engine.interface import SUB_GROUP_ELEMENTS
from pipeline.optimizers.base import FLOAT_BYTES
from pipeline.plan.activations import activations_of
from pipeline.plan.network import Network
from pipeline.run.config import PretrainConfig
from pipeline.samples.batch_plan import UNBOUNDED_STEPS

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
_MAX_GATHERED = 1_050_000_000
"""Elements of weights that stage 3 keeps gathered, with those that it fetches ahead."""
_STAGE_0_BUCKET = 500_000_000
"""Gradient elements that are flattened and reduced at a time without ZeRO."""

Moment = Literal["forward and backward", "reduction", "update", "start"]


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


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Bytes on a rank's device when most of it is taken."""

    moment: Moment
    weights: int
    """Weights, and those that ZeRO-3 has gathered from other ranks."""
    master_weights: int
    optimizer_state: int
    average: int
    gradients: int
    """Gradients, and the buckets and copies that they go through."""
    activations: int
    """Activations, and temporary results."""
    inputs: int
    context: int
    """Memory of CUDA and NCCL outside PyTorch's allocator; on a CPU, the process."""
    fragmentation: int

    @property
    def allocated(self) -> int:
        """Bytes that PyTorch's allocator hands out: `torch.cuda.max_memory_allocated`."""
        return self.total - self.context - self.fragmentation

    @property
    def total(self) -> int:
        """All that must fit."""
        return sum(self.parts.values())

    @property
    def parts(self) -> dict[str, int]:
        """Bytes by what they are, as the fields name it."""
        return {name: size for name, size in asdict(self).items() if name != "moment"}


@dataclass(frozen=True, slots=True)
class HostMemory:
    """Bytes in the memory of one machine, all its ranks together."""

    processes: int
    offloaded: int
    checkpoint_copies: int
    """Copies of the state that are written during training."""
    start: int
    """The network in float32, in every rank, before it moves to its device; gone when training begins."""

    @property
    def total(self) -> int:
        """The larger of start and training."""
        return self.processes + max(self.start, self.offloaded + self.checkpoint_copies)


@dataclass(frozen=True, slots=True)
class Disk:
    """Bytes of checkpoints."""

    checkpoint: int
    """One of them: DeepSpeed's files of all ranks, and the weights, and their average, as safetensors."""
    kept: int | None
    """Number that lies there at the end; None where the run's length is not known and some are kept for good."""
    total: int | None
    """All that are kept, and one that is being written."""
    free: int | None
    """Free where they will lie; None for other places than local directories."""


class Sharding:
    """A run's state spread over ranks, and the memory of gradients beside it."""

    def __init__(self, config: PretrainConfig, network: Network, machines: Machines) -> None:
        self.config, self.network, self.machines = config, network, machines
        self.world_size, self.on_cuda = machines.world_size, machines.on_cuda
        self._item, self._stage = DTYPES[config.precision].itemsize, config.zero.stage
        self._half = self._item < FLOAT_BYTES
        self._offloads = config.zero.offload_optimizer is not None
        self._whole = network.num_parameters
        self._shard = self._whole if self._stage == 0 else -(-self._whole // self.world_size)
        """Elements of a rank's shard of master weights."""
        self._touched = min(self._whole, self._shard + network.largest)
        """Elements of all parameters that a rank of stage 1 or 2 has a share of."""
        self._bucket, self._sent = (
            config.zero.reduce_bucket_elements,
            DTYPES[config.zero.reduce_dtype].itemsize,
        )
        self._keeps_whole_gradients = config.precision == "bf16" and self._stage == 1 and not self._offloads
        moments = config.optimizer.state_bytes(self._shard, network.model)
        average = FLOAT_BYTES * self._shard if config.ema else 0
        weights = self._item * (self._shard if self._stage == 3 else self._whole)
        self.saved = FLOAT_BYTES * self._shard + moments + average + (weights if self._stage == 3 else 0)
        """Bytes that one rank adds to a checkpoint in DeepSpeed's files: the float32 shard, its moments and average.
        Stage 3 saves its shard of the weights beside them; elsewhere weights are not saved twice."""
        # Without ZeRO, float32 weights are their own masters.
        master = 0 if self._stage == 0 and not self._half else FLOAT_BYTES * self._shard
        gradients = FLOAT_BYTES * self._whole if self._keeps_whole_gradients else 0
        bucket = host = 0
        if self._stage == 3:
            gradients, bucket = FLOAT_BYTES * self._shard, self._sent * self._bucket
        if self._offloads:
            host = sum(map(self._pinned, (gradients, master, moments, average, FLOAT_BYTES * self._shard)))
            gradients = master = moments = average = 0
            if self._stage in (1, 2):
                host += self._pinned(self._item * self._shard) + self._pinned(self._item * network.largest)
                host += 0 if self._half else self._item * self._touched
                bucket += self._item * network.largest
        if config.zero.offload_parameters is not None:
            host += self._pinned(weights)
            weights = 0
        self.weights, self.master_weights, self.moments, self.average = weights, master, moments, average
        """Bytes on a rank's device once the first update is made, as are the gradients."""
        self.gradients = gradients + bucket
        """Sums and buckets that exist even between steps."""
        self.offloaded = host
        """Bytes of a rank's state in the memory of its machine."""

    @property
    def state(self) -> int:
        """Bytes on a rank's device between two updates."""
        return self.weights + self.master_weights + self.moments + self.average + self.gradients

    def _step_gradients(self) -> tuple[int, int, int]:
        """Bytes of gradients beside the state: those that wait on the device for the next micro-batch or the update,
        buffers of one backward pass, and those that are added up, with copies, after the last pass."""
        several, several_or_half = self.world_size > 1, self.world_size > 1 or self._half
        bucket = min(self._bucket, self._whole)
        copies = FLOAT_BYTES + (self._sent if self._sent < FLOAT_BYTES else 0)
        whole, in_buckets = FLOAT_BYTES * self._whole, copies * min(self._whole, _STAGE_0_BUCKET) * several
        if self._stage == 0:
            return whole, 0, whole + in_buckets
        if self._keeps_whole_gradients:
            return 0, (self._item + FLOAT_BYTES) * self.network.largest, in_buckets
        if self._stage == 1:
            added = FLOAT_BYTES * max(self._whole, self._bucket) + self._reduced
            return whole, FLOAT_BYTES * self._bucket, added + copies * bucket * several_or_half
        if self._stage == 2:
            return self._reduced, self._item * self._bucket + self._sent * bucket * several_or_half, 0
        # Sorted by ranks; gloo adds up in a copy of its own.
        return 0, self._sent * bucket * (1 if self.on_cuda else 2), 0

    def gathered(self) -> int:
        """Bytes of whole weights that stage 3 holds in a step."""
        copies = self.world_size > 1 or (self.config.zero.offload_parameters is not None and self.on_cuda)
        return self._item * min(self._whole, _MAX_GATHERED) if self._stage == 3 and copies else 0

    def update(self) -> int:
        """Bytes that an update takes beside the state."""
        if self._offloads:
            return self._reduced if self._half and self._stage < 3 else 0
        together = self._shard
        if self._stage == 3:
            together = min(together, SUB_GROUP_ELEMENTS + -(-self.network.largest // self.world_size))
        updated = self.network.largest if self._stage == 0 else together
        scratch = FLOAT_BYTES * self.config.optimizer.TEMPORARIES * updated
        if self._keeps_whole_gradients:
            return scratch
        flat = 2 * together if self._stage == 0 and self._half else together
        whole = self._touched if self._stage in (1, 2) and not self._half else 0
        return FLOAT_BYTES * (flat + whole) + scratch

    @property
    def _reduced(self) -> int:
        """Bytes of reduced gradients that stages 1 and 2 keep on the device until the update."""
        if self._half:
            return FLOAT_BYTES * self._shard
        return 0 if self._offloads else FLOAT_BYTES * self._touched

    def _pinned(self, size: int) -> int:
        """Bytes in host memory: torch's allocator hands out pinned memory in powers of two."""
        return 1 << (size - 1).bit_length() if self.on_cuda and size > 0 else size

    def device(self) -> DeviceMemory:
        """Peak memory of a rank's device in a step of the phase with the longest samples."""
        config, size = self.config, self.config.batch.micro_batch_size
        length = max(config.length_of(phase) for phase in config.phases)
        activations = activations_of(
            self.network, size, length, recomputes=config.compute.gradient_checkpointing
        )
        accumulated, buffers, added = self._step_gradients()
        gathered, whole = self.gathered(), self._item * self._whole
        before = accumulated if config.batch.samples // (size * self.world_size) > 1 else 0
        # Most activations are there before the first gradient is, and most gradients when they are gone.
        begins = (activations.kept + activations.working, before, gathered)
        ends = (activations.working // 2, accumulated + buffers, gathered)
        # DeepSpeed takes the network over while all of it is there.
        start = whole + (self.weights if self._stage == 3 else whole)
        moments: dict[Moment, tuple[int, int, int]] = {
            "forward and backward": max(begins, ends, key=sum),
            "reduction": (0, added, 0),
            "update": (0, self.update(), 0),
            "start": (0, 0, max(0, start - self.state)),
        }
        moment = max(moments, key=lambda name: sum(moments[name]))
        used, gradients, weights = moments[moment]
        inputs = (PREFETCHED_BATCHES if self.on_cuda else 1) * activations.inputs
        teacher = self._item * self.network.teacher_elements
        allocated = self.state + teacher + inputs + used + gradients + weights
        several = COLLECTIVES_BYTES if self.world_size > 1 else 0
        return DeviceMemory(
            moment=moment,
            weights=self.weights + teacher + weights,
            master_weights=self.master_weights,
            optimizer_state=self.moments,
            average=self.average,
            gradients=gradients + self.gradients,
            activations=used,
            inputs=inputs,
            context=CONTEXT_BYTES + several if self.on_cuda else PROCESS_BYTES,
            fragmentation=int(FRAGMENTATION * allocated) if self.on_cuda else 0,
        )

    def host(self) -> HostMemory:
        """Memory of one machine that its ranks take, besides what a CPU rank has as its device."""
        ranks = self.machines.devices_per_node
        copies = self.saved if self.config.checkpoint.asynchronous else 0
        return HostMemory(
            processes=ranks * (CUDA_PROCESS_BYTES if self.on_cuda else PROCESS_BYTES),
            offloaded=ranks * self.offloaded,
            checkpoint_copies=ranks * copies,
            start=ranks * FLOAT_BYTES * self._whole,
        )

    def disk(self) -> Disk:
        """The disk that a run needs."""
        config, whole = self.config, FLOAT_BYTES * self._whole
        ranks = 1 if self._stage == 0 else self.world_size
        checkpoint = ranks * self.saved + whole + (whole if config.ema else 0)
        kept = kept_checkpoints(config)
        total = None if kept is None else (kept + 1) * checkpoint
        place, free = config.checkpoint.directory or config.runs_dir, None
        if isinstance(place, Path):
            path = place.absolute()
            while not path.exists():
                path = path.parent
            free = shutil.disk_usage(path).free
        return Disk(checkpoint, kept, total, free)


def kept_checkpoints(config: PretrainConfig) -> int | None:
    """Checkpoints at the end of the run: the newest, the best, and those that are kept for good."""
    settings, steps = config.checkpoint, config.num_steps
    if steps >= UNBOUNDED_STEPS:
        return None if settings.keep_every_steps else settings.keep_last + 1
    saved = -(-steps // settings.every_steps)
    for_good = steps // settings.keep_every_steps if settings.keep_every_steps else 0
    return min(saved, settings.keep_last + 1 + for_good)
