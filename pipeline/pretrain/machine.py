"""Metrics of the machines of a run: processors, memory, disks, network, GPUs; under MLflow's own names."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil
import torch

_MEGA = 1e6


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


def by_host(samples: Iterable[tuple[str, Mapping[str, float]] | None]) -> dict[str, float]:
    """The log line `system`, such as `HOST/cpu_utilization_percentage`, from the samples of all ranks; None from ranks
    that watch no machine."""
    return {
        f"{host}/{name}": value
        for host, sample in (each for each in samples if each is not None)
        for name, value in sample.items()
    }


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
