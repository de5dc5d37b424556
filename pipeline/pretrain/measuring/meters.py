"""Speed of a run, in units that can be compared between runs, machines and papers; and its memory."""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import psutil
import torch
from torch import nn

from models.initialization import without_memory
from pipeline.engine.gpus import peak_flops
from pipeline.plan.flops import count_flops


def flops_of(build: Callable[[], nn.Module], inputs: Mapping[str, np.ndarray]) -> int:
    """Model FLOPs of a micro-batch, forward and backward; 0 where the network cannot be counted.

    Args:
        build: makes the network; called where tensors have no storage, so that no size is too large.
        inputs: the arguments of its forward pass, as the objective makes them.
    """
    # Networks read and refuse what they like; a figure for the log must not end a run.
    with suppress(Exception):
        with without_memory():
            model = build()
        if isinstance(teacher := getattr(model, "teacher", None), nn.Module):
            teacher.to("meta")
        return count_flops(model.train(), inputs).total
    return 0


@dataclass(frozen=True, slots=True)
class Meter:
    """Turns the times of a step into speeds."""

    flops_per_sample: float
    """Model FLOPs of a sample, forward and backward; 0 where they are not known."""
    num_devices: int
    """Workers that share a step."""
    peak_flops: float | None
    """Peak FLOP/s of one device in the precision of the run; None where it is not known, as for CPUs."""

    def speeds(self, *, tokens: int, samples: int, step_s: float, data_wait_s: float) -> dict[str, float]:
        """The speeds of a step.

        Args:
            tokens: of text in the global batch.
            samples: of the global batch.
            step_s: seconds from the end of the step before to the end of this one.
            data_wait_s: seconds of it in which the step waited for its data.

        Returns:
            `tokens_per_s`, `samples_per_s`, `step_s`, `data_wait_share`, `model_flops_per_s` (of one device), and
            `mfu`, the share of its peak, where that is known. MFU is not given for CPUs, and for cards that are not in
            the table of `pipeline/engine/gpus.py`: a share of a speed measured here is another number, and
            would be mistaken for it.
        """
        found = {
            "tokens_per_s": tokens / step_s,
            "samples_per_s": samples / step_s,
            "step_s": step_s,
            "data_wait_share": data_wait_s / step_s,
        }
        if not self.flops_per_sample:
            return found
        per_device = self.flops_per_sample * samples / step_s / self.num_devices
        found["model_flops_per_s"] = per_device
        return found | ({} if self.peak_flops is None else {"mfu": per_device / self.peak_flops})


class Meters:
    """The meters of a run's phases: samples of other lengths take other numbers of operations."""

    def __init__(
        self, build: Callable[[], nn.Module], *, num_devices: int, device: torch.device, precision: str
    ) -> None:
        """
        Args:
            build: makes the network that is trained; called without storage, once for every phase.
            precision: `fp32`, `bf16` or `fp16`.
        """
        self._build, self._num_devices = build, num_devices
        self.peak_flops = device_peak(device, precision)
        self._meters: dict[int, Meter] = {}

    def meter(
        self, inputs: Callable[[], Mapping[str, np.ndarray]], samples: int, sequence_length: int
    ) -> Meter:
        """The meter of the steps with this sequence length.

        The first micro-batch of a length is counted, in a second or two, and stands for all that follow: how many
        documents share a row differs from one to the next, and what it changes is the attention's part alone.

        Args:
            inputs: gives the arguments of the network for a micro-batch; called for the first of a length alone.
            samples: of the micro-batch.
        """
        if sequence_length not in self._meters:
            flops = flops_of(self._build, inputs())
            self._meters[sequence_length] = Meter(flops / samples, self._num_devices, self.peak_flops)
        return self._meters[sequence_length]


def device_peak(device: torch.device, precision: str) -> float | None:
    """Peak FLOP/s of a device; None for CPUs and unknown cards. `fp32` is the speed without TF32, or with it where it
    is switched on: then half the speed of half precision."""
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    if precision == "fp32" and torch.backends.cuda.matmul.allow_tf32:
        half = peak_flops(name, "bf16")
        # From Ampere on, tensor cores take TF32 at half the rate of bfloat16; cards before have no TF32.
        return peak_flops(name, precision) if half is None else half / 2
    return peak_flops(name, precision)


def memory(device: torch.device) -> dict[str, float]:
    """Bytes of this rank: `host_memory_bytes`, resident in the process now; and since it was started
    `peak_host_memory_bytes`, `peak_gpu_memory_bytes` in tensors, and `reserved_gpu_memory_bytes` with what the
    allocator keeps for later."""
    unit = 1 if sys.platform == "darwin" else 1024
    found = {
        "host_memory_bytes": float(psutil.Process().memory_info().rss),
        "peak_host_memory_bytes": float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit),
    }
    if device.type == "cuda":
        found["peak_gpu_memory_bytes"] = float(torch.cuda.max_memory_allocated(device))
        found["reserved_gpu_memory_bytes"] = float(torch.cuda.max_memory_reserved(device))
    return found
