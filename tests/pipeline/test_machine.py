"""Figures of the machine, under the names that MLflow's pages know."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch
from mlflow.system_metrics.metrics.cpu_monitor import CPUMonitor
from mlflow.system_metrics.metrics.disk_monitor import DiskMonitor

from pipeline.pretrain.machine import MachineMetrics, by_host, describe

CPU = torch.device("cpu")


def test_names_are_those_of_mlflow(tmp_path: Path):
    theirs: set[str] = set()
    for monitor in (CPUMonitor(), DiskMonitor()):
        monitor.collect_metrics()
        theirs |= monitor.metrics.keys()
    assert theirs <= MachineMetrics(tmp_path, CPU).sample().keys()


def test_figures_are_those_of_this_machine(tmp_path: Path):
    machine = MachineMetrics(tmp_path, CPU)
    found = machine.sample()
    assert 0 <= found["cpu_utilization_percentage"] <= 100
    assert 0 < found["system_memory_usage_megabytes"] * 1e6 < psutil.virtual_memory().total
    total = os.statvfs(tmp_path).f_frsize * os.statvfs(tmp_path).f_blocks
    assert 0 < found["disk_available_megabytes"] * 1e6 < total
    assert not any(name.startswith("gpu") for name in found)
    assert all(value >= 0 for value in machine.sample().values())


def test_a_figure_that_cannot_be_had_is_left_out(tmp_path: Path):
    gone = tmp_path / "gone"
    gone.mkdir()
    machine = MachineMetrics(gone, CPU)
    gone.rmdir()
    found = machine.sample()
    assert not any(name.startswith("disk_available") for name in found)
    assert "cpu_utilization_percentage" in found


def test_machines_are_told_apart_by_their_names():
    gathered = [
        ("node-1", {"cpu_utilization_percentage": 50.0}),
        None,
        ("node-2", {"load_average": 1.5}),
        None,
    ]
    assert by_host(gathered) == {"node-1/cpu_utilization_percentage": 50.0, "node-2/load_average": 1.5}


def test_a_rank_says_where_it_runs():
    found = describe(CPU)
    assert (found["pid"], found["torch"], found["device"]) == (os.getpid(), torch.__version__, "cpu")


def test_every_gpu_is_watched_and_what_one_does_not_know_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def ecc(handle: int, error_type: int, counter: int) -> int:
        if handle == 1:
            raise RuntimeError("Not Supported")
        return 3

    nvml = SimpleNamespace(
        NVML_MEMORY_ERROR_TYPE_UNCORRECTED=1,
        NVML_VOLATILE_ECC=0,
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda number: number,
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(used=2_000_000, total=8_000_000),
        nvmlDeviceGetUtilizationRates=lambda handle: SimpleNamespace(gpu=40 + handle),
        nvmlDeviceGetPowerUsage=lambda handle: 350_000,
        nvmlDeviceGetTotalEccErrors=ecc,
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    found = MachineMetrics(tmp_path, CPU).sample()
    assert found["gpu_0_uncorrected_ecc_errors"] == 3
    assert "gpu_1_uncorrected_ecc_errors" not in found
    assert found["gpu_1_utilization_percentage"] == 41
    assert found["gpu_1_power_usage_watts"] == 350
    assert found["gpu_1_memory_usage_percentage"] == 25


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_memory_of_a_gpu_is_watched(tmp_path: Path):
    device = torch.device("cuda", 0)
    machine = MachineMetrics(tmp_path, device)
    kept = torch.empty(1 << 28, dtype=torch.uint8, device=device)
    assert machine.sample()["gpu_0_memory_usage_megabytes"] * 1e6 >= kept.nbytes
    assert describe(device)["gpu"]
