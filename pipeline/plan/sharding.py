"""What DeepSpeed allocates on every rank, read off its optimizers (`runtime/zero/stage_1_and_2.py`, `stage3.py`,
`runtime/fp16/fused_optimizer.py` of 0.19.8) and checked against measurements (tests/benchmarks/plan_memory.py).

Weights have the run's precision; master weights, moments, the average and the sums of gradients are float32. Gradients
are sent as `reduce_dtype`, from a copy where that is another. What is read off:

- Stage 0 in float32 has no copies. In half precision flat master weights lie beside the weights, and an update with a
  fused kernel flattens all gradients.
- Stages 1 and 2 keep flat weights and a float32 shard, also of float32 weights. Gradients go through a bucket that
  exists from a step's first gradient to its last. Stage 1 keeps whole gradients until then; stage 2 keeps whole
  gradients of the parameters that its shard touches, and an update flattens them. In half precision the sums are one
  flat shard, on the device also where the optimizer is offloaded; the bucket of stage 2 has the weights' precision.
- Stage 1 in bf16 is another optimizer, unless offloaded: whole gradients, all the time, no bucket, no other copy.
- Stage 3 keeps shards of weights, of master weights and of gradients, and its bucket, all the time. Once it knows the
  order of the layers, weights that were gathered stay until the backward pass has used them for the last time, up to
  10^9 elements (`stage3_max_live_parameters`); on one rank they are no copies. They arrive in flat buffers for several
  layers at once (`stage3_prefetch_bucket_size`), each of which stays until its last layer has taken its own copy. An
  update goes through groups of 10^8 elements (`sub_group_size`).
- Stage 3 reduces a bucket from a flat copy that is sorted by ranks, also on one rank; `gloo` adds up in one more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from pipeline.engine.interface import SUB_GROUP_ELEMENTS
from pipeline.optimizers.base import FLOAT_BYTES
from pipeline.run.config import PretrainConfig

ITEM_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}
_PREFETCHED = 50_000_000
"""Elements that stage 3 fetches ahead, in one flat buffer."""
_MAX_GATHERED = 1_000_000_000 + _PREFETCHED
"""Elements that stage 3 keeps gathered, with those fetched ahead."""
_STAGE_0_BUCKET = 500_000_000
"""Gradient elements that are flattened and reduced at a time without ZeRO."""


@dataclass(frozen=True, slots=True)
class Shards:
    """Bytes that a rank holds all the time, by what they are."""

    weights: int
    master_weights: int
    optimizer_state: int
    average: int
    gradients: int
    """Buffers that exist even between steps."""
    buffers: int
    """For communication, and between device and host."""
    host: int
    """Bytes of the offloaded state in the memory of the machine."""

    @property
    def device(self) -> int:
        """All on the device."""
        return sum(asdict(self).values()) - self.host


@dataclass(frozen=True, slots=True)
class Sharding:
    """How a run's state is spread, and the arithmetic of it."""

    config: PretrainConfig
    groups: tuple[tuple[int, ...], ...]
    """Elements of each parameter, by optimizer group."""
    world_size: int
    on_cuda: bool
    shapes: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """Name and shape of each parameter, for optimizers whose state depends on them."""

    @property
    def item(self) -> int:
        """Bytes of a weight."""
        return ITEM_BYTES[self.config.precision]

    @property
    def _half(self) -> bool:
        return self.item < FLOAT_BYTES

    @property
    def _sent(self) -> int:
        """Bytes of a gradient that is sent."""
        return ITEM_BYTES[self.config.zero.reduce_dtype]

    @property
    def _has_whole_gradients(self) -> bool:
        """Whether whole float32 gradients exist all the time; see `pipeline.engine.deepspeed.masters`."""
        return self.config.precision == "bf16" and self.config.zero.stage == 1 and not self.offloads_optimizer

    @property
    def num_parameters(self) -> int:
        return sum(map(sum, self.groups))

    @property
    def largest(self) -> int:
        """Elements of the largest parameter."""
        return max(max(group) for group in self.groups)

    @property
    def shard(self) -> int:
        """Elements of a rank's shard of master weights."""
        ranks = self.world_size
        if self.config.zero.stage == 0:
            return self.num_parameters
        if self.config.zero.stage == 3:
            return sum(-(-size // ranks) for group in self.groups for size in group)
        return sum(-(-sum(group) // (2 * ranks)) * 2 for group in self.groups)

    @property
    def touched(self) -> int:
        """Elements of all parameters of which the busiest rank of stage 1 or 2 has some."""
        totals = np.zeros(self.world_size, dtype=np.int64)
        for group in self.groups:
            share = -(-sum(group) // self.world_size)
            sizes = np.asarray(group, dtype=np.int64)
            stops = np.cumsum(sizes)
            first, last = (stops - sizes) // share, (stops - 1) // share
            changes = np.zeros(self.world_size + 1, dtype=np.int64)
            np.add.at(changes, first, sizes)
            np.add.at(changes, last + 1, -sizes)
            totals += np.cumsum(changes)[:-1]
        return int(totals.max())

    @property
    def bucket(self) -> int:
        """Elements of the bucket through which gradients go."""
        return self.config.zero.reduce_bucket_elements

    @property
    def offloads_optimizer(self) -> bool:
        return self.config.zero.offload_optimizer is not None

    @property
    def moments(self) -> int:
        """Bytes of a rank's optimizer state, without the average."""
        on_cuda = self.on_cuda and not self.offloads_optimizer
        return self.config.optimizer.state_bytes(self.shard, self.shapes, on_cuda=on_cuda)

    @property
    def average(self) -> int:
        """Bytes of a rank's share of the average of the weights."""
        return FLOAT_BYTES * self.shard if self.config.ema else 0

    def shards(self) -> Shards:
        """What is held all the time, once the first update is made."""
        zero, shard, item = self.config.zero, self.shard, self.item
        moments, average = self.moments, self.average
        # Without ZeRO, float32 weights are their own masters.
        master = 0 if zero.stage == 0 and item == FLOAT_BYTES else FLOAT_BYTES * shard
        weights = item * (shard if zero.stage == 3 else self.num_parameters)
        whole = self.num_parameters if self._has_whole_gradients else 0
        gradients = FLOAT_BYTES * (shard if zero.stage == 3 else whole)
        buffers = self._sent * self.bucket if zero.stage == 3 else 0
        host = 0
        if zero.offload_optimizer is not None:
            host += sum(map(self._in_host, (gradients, master, moments, average, FLOAT_BYTES * shard)))
            gradients = master = moments = average = 0
            if zero.stage in (1, 2):
                host += self._in_host(item * shard) + self._in_host(item * self.largest)
                host += 0 if self._half else item * self.touched
                buffers += item * self.largest
        if zero.offload_parameters is not None:
            host += self._in_host(weights)
            weights = 0
        return Shards(weights, master, moments, average, gradients, buffers, host)

    @property
    def _updated_together(self) -> int:
        """Elements of a shard that an update takes at a time."""
        together = SUB_GROUP_ELEMENTS + -(-self.largest // self.world_size)
        return min(self.shard, together) if self.config.zero.stage == 3 else self.shard

    def held(self, finished: Sequence[int], accumulates: bool) -> list[int]:
        """Bytes of gradients and buckets in each stretch of the backward pass.

        Args:
            finished: gradient elements finished before each stretch, ascending; the first is 0.
            accumulates: there are gradients of an earlier micro-batch.
        """
        stage = self.config.zero.stage
        if self._has_whole_gradients:
            # Each is added as soon as it is there, through a float32 copy.
            return [(self.item + FLOAT_BYTES) * size for size in np.diff([0, *finished]).tolist()]
        if stage == 0:
            return [FLOAT_BYTES * (self.num_parameters if accumulates else done) for done in finished]
        if stage == 1:
            bucket = FLOAT_BYTES * self.bucket
            if accumulates:
                return [bucket + FLOAT_BYTES * self.num_parameters] * len(finished)
            return [FLOAT_BYTES * done + (bucket if done else 0) for done in finished]
        return self._through_bucket(finished, accumulates)

    def gathered(self, finished: Sequence[int]) -> list[int]:
        """Bytes of whole weights that stage 3 holds in each stretch of the backward pass, as `held` has them."""
        place = self.config.zero.offload_parameters
        copies = self.world_size > 1 or (place is not None and self.on_cuda)
        if self.config.zero.stage < 3 or not copies:
            return [0] * len(finished)
        # A layer's weights go when its last gradient is there: what a stretch begins with was gathered before it.
        return [self.item * min(self.num_parameters - done, _MAX_GATHERED) for done in (0, *finished[:-1])]

    def arriving(self) -> int:
        """Bytes of the buffer in which the last weights arrive in the forward pass of stage 3."""
        return min(*self.gathered([0]), self.item * (_PREFETCHED + self.largest))

    def _through_bucket(self, finished: Sequence[int], accumulates: bool) -> list[int]:
        """Stages 2 and 3: gradients wait in the bucket, and leave it when the next has no room in it."""
        item, partitions = self.item, self.config.zero.stage == 2
        kept = self._kept if partitions else 0
        bucket = item * self.bucket if partitions else 0
        before = kept if accumulates else 0
        waiting = outside = 0
        flushed = False
        found = [before]
        for size in np.diff(np.asarray(finished, dtype=np.int64)).tolist():
            copied = 0
            if waiting + outside + size > self.bucket:
                copied = self._copied(waiting, outside)
                flushed, waiting, outside = True, 0, 0
            # What is larger than the bucket stays where it is until the next gradient comes.
            waiting, outside = (waiting, size) if size > self.bucket else (waiting + size, outside)
            found.append(before + bucket + copied + item * outside + (kept if flushed else 0))
        last = self._copied(waiting, outside)
        found[-1] = max(found[-1], before + bucket + last + item * outside + kept)
        return found

    @property
    def _kept(self) -> int:
        """Bytes of reduced gradients that stages 1 and 2 keep on the device until the update."""
        if self._half:
            return FLOAT_BYTES * self.shard
        return 0 if self.offloads_optimizer else FLOAT_BYTES * self.touched

    def _copied(self, waiting: int, outside: int) -> int:
        """Bytes of the copies from which stages 2 and 3 reduce what waits in the bucket, or one gradient outside."""
        converted = self._sent if self._sent != self.item else 0
        if self.config.zero.stage == 2:
            # Shards of whole gradients are reduced one by one, also on one rank.
            flat = self.item if self.world_size > 1 or self._half else 0
            return (flat + converted) * (waiting + outside)
        # Sorted by ranks, which one gradient is as it lies; gloo adds up in a copy of its own.
        gloo = 0 if self.on_cuda else self._sent * (waiting + outside)
        return self._sent * waiting + converted * outside + gloo

    def reduction(self) -> int:
        """Most bytes of gradients and buckets while stage 1, or none, adds up gradients after the backward pass."""
        stage, whole = self.config.zero.stage, self.num_parameters
        copies = FLOAT_BYTES + (self._sent if self._sent < FLOAT_BYTES else 0)
        if stage == 0 or self._has_whole_gradients:
            held = FLOAT_BYTES * whole if stage == 0 else 0
            return held + (copies * min(whole, _STAGE_0_BUCKET) if self.world_size > 1 else 0)
        if stage == 1:
            copied = min(self.bucket, whole) if self.world_size > 1 or self._half else 0
            return FLOAT_BYTES * max(whole, self.bucket) + self._kept + copies * copied
        return 0

    def update(self) -> int:
        """Bytes that an update takes besides what is held all the time."""
        stage, shard = self.config.zero.stage, self.shard
        if self.offloads_optimizer:
            return self._kept if self._half and stage < 3 else 0
        scratch = self.config.optimizer.update_bytes(shard, self.largest, on_cuda=self.on_cuda)
        if stage == 0:
            # A fused kernel flattens gradients; DeepSpeed rounds them for their norm elsewhere.
            copied = FLOAT_BYTES if self.on_cuda else self.item
            return (FLOAT_BYTES + (copied if self._half else 0)) * shard + scratch
        if self._has_whole_gradients:
            return scratch
        flat = FLOAT_BYTES * self._updated_together
        return flat + scratch + (FLOAT_BYTES * self.touched if stage < 3 and not self._half else 0)

    def start(self) -> int:
        """Most bytes on the device while DeepSpeed takes the network over."""
        whole = self.item * self.num_parameters
        return whole + (self.shards().weights if self.config.zero.stage == 3 else whole)

    def _in_host(self, size: int) -> int:
        """Of pinned memory, torch's allocator gives out powers of two."""
        return 1 << (size - 1).bit_length() if self.on_cuda and size > 0 else size
