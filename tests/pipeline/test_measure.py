"""Operations and speeds of steps, the slowest rank, and figures of the machine under the names that MLflow knows."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from models.config import TransformerConfig
from models.distillation import DistilledLanguageModel
from models.language_models import CausalLanguageModel, MaskedLanguageModel
from pipeline.engine.gpus import peak_flops
from pipeline.plan.flops import Flops, count_flops
from pipeline.pretrain.measure import (
    MachineMetrics,
    SampleFlops,
    compare_ranks,
    describe,
    device_peak,
    speeds,
)
from tests.benchmarks.plan_memory import CASES, network_and_batch

VOCABULARY, HIDDEN, LAYERS, LENGTH, ROWS = 512, 64, 3, 32, 4
SIZES: Any = {"hidden_size": HIDDEN, "num_layers": LAYERS, "num_heads": 4, "intermediate_size": 4 * HIDDEN}
CONFIG = TransformerConfig(vocab_size=VOCABULARY, max_positions=LENGTH, **SIZES)
CPU = torch.device("cpu")
NAMES_IN_MLFLOW = {
    "cpu_utilization_percentage",
    *("system_memory_usage_megabytes", "system_memory_usage_percentage"),
    *("disk_usage_megabytes", "disk_usage_percentage", "disk_available_megabytes"),
}
"""Figures of a machine without GPUs in MLflow's page of system metrics."""
aten = torch.ops.aten


def causal_inputs(boundaries: list[int] | None = None) -> dict[str, np.ndarray]:
    ids = np.arange(ROWS * LENGTH).reshape(ROWS, LENGTH) % VOCABULARY
    positions = np.arange(ROWS * LENGTH)
    inputs = {"input_ids": ids, "predicted_positions": positions, "targets": ids.reshape(-1)}
    return inputs | ({} if boundaries is None else {"cu_seqlens": np.asarray(boundaries, dtype=np.int32)})


def causal_lm() -> CausalLanguageModel:
    return CausalLanguageModel(replace(CONFIG, network="decoder"))


def counted(model: nn.Module, inputs: dict[str, np.ndarray]) -> Flops:
    return count_flops(model.to("meta").train(), inputs)


def test_a_decoder_takes_what_the_papers_formula_says():
    count = counted(causal_lm(), causal_inputs())
    tokens = ROWS * LENGTH
    # Chowdhery et al. 2022, appendix B: 6 N + 12 L H Q T per token, where N are the weights of matrix products.
    weights = LAYERS * 12 * HIDDEN**2 + VOCABULARY * HIDDEN
    assert count.products == 6 * weights * tokens
    assert count.attention == 12 * LAYERS * HIDDEN * LENGTH * tokens


def test_documents_that_do_not_see_each_other_take_less_attention():
    boundaries = [row * LENGTH + start for row in range(ROWS) for start in (0, 8)] + [ROWS * LENGTH]
    packed, whole = counted(causal_lm(), causal_inputs(boundaries)), counted(causal_lm(), causal_inputs())
    assert packed.products == whole.products
    assert packed.attention * LENGTH**2 == whole.attention * (8**2 + 24**2)


@pytest.mark.parametrize("kind", ["MLM", "CLM", "ELECTRA", "BART", "T5", "ELMo"])
def test_counted_products_are_those_of_a_real_step(kind: str):
    case = next(each for each in CASES if each.name.startswith(f"{kind}, stage"))
    model, batch = network_and_batch(case)
    in_place = {aten.addmm_: lambda total, left, right, **_: 2 * left[0] * left[1] * right[1]}
    with FlopCounterMode(display=False, custom_mapping=in_place) as real:
        losses, _ = model.train()(**batch)
        torch.stack(list(losses.values())).sum().backward()
    # The kernel of attention on a CPU has no formula there.
    found = counted(model, {name: tensor.numpy() for name, tensor in batch.items()})
    assert found.products == real.get_total_flops()


def test_a_teacher_counts_for_its_forward_pass_alone():
    inputs = causal_inputs()
    teacher = MaskedLanguageModel(replace(CONFIG, num_layers=2 * LAYERS)).to("meta")
    student = counted(MaskedLanguageModel(CONFIG), inputs)
    distilled = DistilledLanguageModel(CONFIG, teacher, temperature=2.0, hidden_loss=False)
    both = counted(distilled, inputs | {"soft_positions": inputs["predicted_positions"]})
    # Twice the layers, and a third of forward and backward.
    assert both.attention * 3 == student.attention * 5


@pytest.mark.parametrize(
    ("flops", "peak", "more"),
    [
        (0.0, 100e12, {}),
        (0.25e12, None, {"model_flops_per_s": 50e12}),
        (0.25e12, 100e12, {"model_flops_per_s": 50e12, "mfu": 0.5}),
    ],
)
def test_speeds_are_those_of_the_whole_group_and_mfu_is_known_where_the_peak_is(
    flops: float, peak: float | None, more: dict[str, float]
):
    assert speeds(6400, 50, 0.25, 0.05, flops, peak) == {
        "tokens_per_s": 25600,
        "samples_per_s": 200,
        "step_s": 0.25,
        "data_wait_share": pytest.approx(0.2),
        **more,
    }


def test_each_sequence_length_is_counted_once_and_what_cannot_be_built_not_at_all():
    def fail() -> Any:
        raise KeyError("no such network, or asked for again")

    unknown, flops = SampleFlops(fail), SampleFlops(causal_lm)
    unknown.count(LENGTH, ROWS, causal_inputs)
    flops.count(LENGTH, ROWS, causal_inputs)
    first = flops.per_sample
    assert (unknown.per_sample, first) == (0, counted(causal_lm(), causal_inputs()).total / ROWS)
    half = {name: array[..., : array.shape[-1] // 2] for name, array in causal_inputs().items()}
    flops.count(LENGTH // 2, ROWS, lambda: half)
    assert 0 < flops.per_sample < first / 2
    flops.count(LENGTH, ROWS, fail)
    assert flops.per_sample == first


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_no_product_is_faster_than_the_peak_of_its_card():
    device = torch.device("cuda", 0)
    peak = device_peak(device, "bf16")
    assert peak == peak_flops(torch.cuda.get_device_name(device), "bf16")
    if peak is None:
        pytest.skip("the card is not in the table")
    side = 8192
    left = torch.randn(side, side, dtype=torch.bfloat16, device=device)
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    for _ in range(5):
        torch.mm(left, left)
    start.record()
    for _ in range(20):
        torch.mm(left, left)
    end.record()
    torch.cuda.synchronize()
    assert 0.3 < 20 * 2 * side**3 / (start.elapsed_time(end) / 1000) / peak < 1.0


@pytest.mark.parametrize(
    ("busy_s", "ratio", "stragglers"),
    [
        pytest.param([[1.0, 1.1, 0.9], [1.5, 1.65, 1.35], [1.0, 1.1, 0.9]], 1.5, [1], id="one of three"),
        pytest.param([[1.0], [1.4]], None, [1], id="the slower one of two"),
        pytest.param([[1.0], [1.2]], None, [], id="two that are nearly alike"),
        pytest.param([[1.0, 1.0, 1.0], [1.0, 60.0, 1.0]], None, [], id="one slow step"),
    ],
)
def test_a_straggler_is_slower_than_the_ratio_in_most_steps(
    busy_s: list[list[float]], ratio: float | None, stragglers: list[int]
):
    metrics, found = compare_ranks(busy_s, 1.3, [{"rank": rank} for rank in range(len(busy_s))])
    assert [one["rank"] for one in found] == stragglers
    assert ratio is None or (metrics["rank_busy_p50_s"], metrics["slowest_rank_ratio"]) == (
        1.0,
        pytest.approx(ratio),
    )


def test_figures_are_those_of_this_machine_under_the_names_of_mlflow(tmp_path: Path):
    machine = MachineMetrics(tmp_path, CPU)
    found = machine.sample()
    assert found.keys() >= NAMES_IN_MLFLOW
    assert describe(CPU)["device"] == "cpu"
    assert 0 <= found["cpu_utilization_percentage"] <= 100
    assert 0 < found["system_memory_usage_megabytes"] * 1e6 < psutil.virtual_memory().total
    total = os.statvfs(tmp_path).f_frsize * os.statvfs(tmp_path).f_blocks
    assert 0 < found["disk_available_megabytes"] * 1e6 < total
    assert not any(name.startswith("gpu") for name in found)
    assert all(value >= 0 for value in machine.sample().values())
    (tmp_path / "gone").mkdir()
    machine = MachineMetrics(tmp_path / "gone", CPU)
    (tmp_path / "gone").rmdir()
    assert NAMES_IN_MLFLOW - machine.sample().keys() == {name for name in NAMES_IN_MLFLOW if "disk" in name}


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
