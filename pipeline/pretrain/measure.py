"""Measurements of every step: speeds that can be compared between runs, machines and papers, and memory; periodically
also the ranks that are slower than the group, and the machines under MLflow's own names of metrics."""

from __future__ import annotations

import os
import platform
import resource
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from statistics import median_low
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
import torch
from torch import nn

from cluster.collectives import gathered
from pipeline.engine.gpus import peak_flops
from pipeline.plan.flops import count_flops, without_storage
from pipeline.run.events import Event
from pipeline.run.log.lines import LogKind

if TYPE_CHECKING:
    from cluster.group import Rank
    from pipeline.pretrain.batches import HostBatch
    from pipeline.pretrain.step_timer import StepTimer
    from pipeline.run.config import PretrainConfig
    from pipeline.run.directory import RunDirectory
    from pipeline.run.log.log import RunLog
    from pipeline.samples.loader import Step

_MEGA = 1e6


@dataclass
class Measurements:
    """Measures a run; all ranks make one, and call `report` for every step."""

    run: RunDirectory
    config: PretrainConfig
    rank: Rank
    device: torch.device
    build: Callable[[], nn.Module]
    """Makes the network that is trained."""
    workers: Sequence[dict[str, Any]]
    """By rank, where it runs."""
    log: RunLog

    def __post_init__(self) -> None:
        self._busy_s: list[float] = []
        """`StepTimer.busy_s` by step since the last comparison."""
        self._flops = SampleFlops(self.build)
        self._peak_flops = device_peak(self.device, self.config.precision)
        self._is_first = True
        self._machine = MachineMetrics(self.run.path, self.device) if self.rank.local_rank == 0 else None

    def prepare(self, step: Step[HostBatch]) -> None:
        """Count the operations of a step like this one, before its time is taken. The first step of an attempt is not
        made to wait for that."""
        if self.rank.rank == 0 and not self._is_first:
            # Micro-batches may be sorted by length: measure the one in the middle.
            middle = list(step.micro_batches.values())[len(step.micro_batches) // 2]
            length = self.config.token_plan.sequence_length_at(step.data_step)
            self._flops.count(length, self.config.batch.micro_batch_size, middle.arrays)
        self._is_first = False

    def report(
        self, number: int, step: Step[HostBatch], values: Mapping[str, float], spent: StepTimer
    ) -> None:
        """Log step `number` (1 is the first) with the values that it computed."""
        self._busy_s.append(spent.busy_s)
        if self.rank.rank == 0:
            samples = self.config.batch_plan.samples_at(step.data_step)
            found = speeds(
                samples * self.config.token_plan.sequence_length_at(step.data_step),
                samples,
                spent.whole_s,
                spent.waiting_s,
                self._flops.per_sample / self.rank.world_size,
                self._peak_flops,
            )
            self.log.write(LogKind.STEP, number, {**values, **found, **memory(self.device)})
        if number % self.config.guards.straggler_every_steps == 0:
            self._compare_ranks(number)

    def _compare_ranks(self, number: int) -> None:
        """Times and memory of all ranks since the last comparison, and what their machines do; who is slow is named in
        the run's history."""
        machine = None if self._machine is None else (self._machine.host, self._machine.sample())
        mine = {"busy_s": self._busy_s, "memory": memory(self.device), "machine": machine}
        self._busy_s = []
        everyone = gathered(mine)
        metrics, stragglers = compare_ranks(
            [one["busy_s"] for one in everyone], self.config.guards.straggler_ratio, self.workers
        )
        most = {f"max_{name}": max(one["memory"][name] for one in everyone) for name in everyone[0]["memory"]}
        self.log.write(LogKind.RANKS, number, {**metrics, **most})
        # One rank of each machine watches it.
        machines = dict(one["machine"] for one in everyone if one["machine"] is not None)
        figures = {f"{host}/{name}": value for host, own in machines.items() for name, value in own.items()}
        self.log.write(LogKind.SYSTEM, number, figures)
        if stragglers:
            group_s = round(metrics["rank_busy_p50_s"], 6)
            self.log.history(Event.STRAGGLER, step=number, group_p50_s=group_s, ranks=stragglers)


class SampleFlops:
    """Model FLOPs of a sample, forward and backward: samples of other lengths take other numbers of operations.

    The first micro-batch of a length is counted, in a second or two, and represents the others: how many documents
    share a row differs from one to the next, and what it changes is the attention's part alone.
    """

    def __init__(self, build: Callable[[], nn.Module]) -> None:
        """`build` makes the network that is trained; called once for every length, where tensors have no storage."""
        self._build = build
        self._counted: dict[int, float] = {}
        self.per_sample = 0.0
        """Operations per sample, of the samples that were counted last; 0 before the first, and where the network
        cannot be counted."""

    def count(self, length: int, samples: int, inputs: Callable[[], Mapping[str, np.ndarray]]) -> None:
        """Count a micro-batch of rows of a length; `inputs` gives the network's arguments, once for a length."""
        if length not in self._counted:
            self._counted[length] = 0.0
            # Networks read and refuse what they like; a figure for the log must not end a run.
            with suppress(Exception):
                self._counted[length] = count_flops(without_storage(self._build), inputs()).total / samples
        self.per_sample = self._counted[length]


def speeds(
    tokens: int, samples: int, step_s: float, data_wait_s: float, flops: float, peak_flops: float | None
) -> dict[str, float]:
    """The speeds of a step.

    Args:
        tokens, samples: of the global batch.
        step_s: seconds from the end of the step before to the end of this one.
        data_wait_s: seconds of it that the step waited for its data.
        flops: model FLOPs of one device for a sample; 0 where they are not known.
        peak_flops: peak FLOP/s of one device in the precision of the run; None where it is not known.

    Returns:
        `tokens_per_s`, `samples_per_s`, `step_s`, `data_wait_share`, `model_flops_per_s` (of one device), and `mfu`,
        the share of its peak, where that is known. MFU is not given for CPUs, and for cards that are not in the table
        of `pipeline/engine/gpus.py`: a share of a speed measured here is another number, and would be mistaken for it.
    """
    found = {
        "tokens_per_s": tokens / step_s,
        "samples_per_s": samples / step_s,
        "step_s": step_s,
        "data_wait_share": data_wait_s / step_s,
    }
    if flops:
        found["model_flops_per_s"] = flops * samples / step_s
        if peak_flops is not None:
            found["mfu"] = found["model_flops_per_s"] / peak_flops
    return found


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


def compare_ranks(
    busy_s: Sequence[Sequence[float]], ratio: float, workers: Sequence[dict[str, Any]]
) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """Compare the busy times of all ranks.

    Args:
        busy_s: by rank, its times; at least one each.
        ratio: times the group's median above which a rank's median makes it a straggler.
        workers: as in the event `started`.

    Returns:
        For the log, the group's median and the slowest rank's in units of it; and the workers of the stragglers,
        slowest first. The group's median is that of the ranks' medians, the lower of the two in the middle, so that
        the slower of two ranks is found.
    """
    p50, p90 = ([float(np.percentile(times, share)) for times in busy_s] for share in (50, 90))
    group = median_low(p50)
    slow = [rank for rank in np.argsort(p50)[::-1].tolist() if p50[rank] > ratio * group]
    metrics = {
        "rank_busy_p50_s": group,
        "rank_busy_p90_s": max(p90),
        "slowest_rank_ratio": max(p50) / group if group > 0 else 1.0,
    }
    return metrics, [
        {**workers[rank], "p50_s": round(p50[rank], 6), "p90_s": round(p90[rank], 6)} for rank in slow
    ]


class MachineMetrics:
    """Samples one machine; the process with local rank 0 has one. A figure that a machine does not give is left out,
    and nothing here ever fails."""

    def __init__(self, run_directory: Path, device: torch.device) -> None:
        """
        Args:
            run_directory: the disk that it lies on is watched.
            device: of this rank; the only GPU that can be asked where NVML does not answer.
        """
        self.host = platform.node()
        self._directory, self._device = run_directory, device
        # NVIDIA's management library, where there is a driver.
        self._nvml: Any = None
        with suppress(Exception):
            nvml = import_module("pynvml")
            nvml.nvmlInit()
            self._nvml = nvml
        self._at = time.monotonic()
        self._before = _counters()
        # The first call has nothing to compare with, and gives 0.
        with suppress(Exception):
            psutil.cpu_percent()

    def sample(self) -> dict[str, float]:
        """The figures by name: percentages, megabytes (10^6 bytes), watts, errors of memory since the driver was
        loaded; rates over the time since the last call."""
        found: dict[str, float] = {}
        with suppress(Exception):
            found["cpu_utilization_percentage"] = psutil.cpu_percent()
            found["load_average"] = os.getloadavg()[0]
        with suppress(Exception):
            memory = psutil.virtual_memory()
            found["system_memory_usage_megabytes"] = memory.used / _MEGA
            found["system_memory_usage_percentage"] = memory.used / memory.total * 100
        with suppress(Exception):
            disk = psutil.disk_usage(str(self._directory))
            found["disk_usage_percentage"] = disk.percent
            found["disk_usage_megabytes"] = disk.used / _MEGA
            found["disk_available_megabytes"] = disk.free / _MEGA
        now, counters = time.monotonic(), _counters()
        elapsed_s, before = max(now - self._at, 1e-6), self._before
        self._at, self._before = now, counters
        for name in counters.keys() & before.keys():
            found[f"{name}_megabytes_per_s"] = max(0, counters[name] - before[name]) / _MEGA / elapsed_s
        with suppress(Exception):
            found |= self._gpus()
        return {name: round(value, 3) for name, value in found.items()}

    def _gpus(self) -> dict[str, float]:
        if self._nvml is None:
            # Asking for another GPU would make a context on it, half a gigabyte that is not ours.
            if self._device.type != "cuda":
                return {}
            free, total = torch.cuda.mem_get_info(self._device)
            return _gpu_memory(self._device.index or 0, total - free, total)
        found: dict[str, float] = {}
        for number in range(self._nvml.nvmlDeviceGetCount()):
            handle = self._nvml.nvmlDeviceGetHandleByIndex(number)
            with suppress(Exception):
                memory = self._nvml.nvmlDeviceGetMemoryInfo(handle)
                found |= _gpu_memory(number, memory.used, memory.total)
            with suppress(Exception):
                rates = self._nvml.nvmlDeviceGetUtilizationRates(handle)
                found[f"gpu_{number}_utilization_percentage"] = rates.gpu
            with suppress(Exception):
                found[f"gpu_{number}_power_usage_watts"] = self._nvml.nvmlDeviceGetPowerUsage(handle) / 1000
            with suppress(Exception):
                kinds = self._nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, self._nvml.NVML_VOLATILE_ECC
                errors = self._nvml.nvmlDeviceGetTotalEccErrors(handle, *kinds)
                found[f"gpu_{number}_uncorrected_ecc_errors"] = errors
        return found


def describe(device: torch.device) -> dict[str, Any]:
    """Location and hardware of a rank: host, process, card, and the versions that its numbers depend on."""
    found: dict[str, Any] = {
        "host": platform.node(),
        "pid": os.getpid(),
        "device": str(device),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "deepspeed": version("deepspeed"),
        "threads": torch.get_num_threads(),
    }
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        found |= {
            "gpu": properties.name,
            "gpu_memory_bytes": properties.total_memory,
            "cuda": torch.version.cuda,
            "nccl": ".".join(map(str, import_module("torch.cuda.nccl").version())),
        }
    return found


def _gpu_memory(number: int, used: int, total: int) -> dict[str, float]:
    return {
        f"gpu_{number}_memory_usage_percentage": used / total * 100,
        f"gpu_{number}_memory_usage_megabytes": used / _MEGA,
    }


def _counters() -> dict[str, int]:
    """Bytes since the machine was started."""
    found: dict[str, int] = {}
    with suppress(Exception):
        network = psutil.net_io_counters()
        found |= {"network_receive": network.bytes_recv, "network_transmit": network.bytes_sent}
    with suppress(Exception):
        disks = psutil.disk_io_counters()
        if disks is not None:
            found |= {"disk_read": disks.read_bytes, "disk_write": disks.write_bytes}
    return found
