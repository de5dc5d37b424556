"""The benchmark for GPUs runs on any device, so that it works on the day a GPU is at hand."""

import copy
import math

import pytest
import torch

from pipeline.objectives import OBJECTIVES
from tests.benchmarks import plan_memory
from tests.benchmarks.gpu import agreement, throughput
from tests.benchmarks.gpu.__main__ import MEMORY_CASES, report
from tests.benchmarks.gpu.agreement import Check, resumed_runs_are_identical
from tests.published_networks import PRESETS


@pytest.mark.parametrize("preset", ["bert-tiny", "gpt2"])
def test_every_implementation_is_measured(preset: str, monkeypatch: pytest.MonkeyPatch):
    small = {"num_layers": 1, "hidden_size": 32, "num_heads": 2, "intermediate_size": 64, "vocab_size": 100}
    monkeypatch.setattr(throughput, "PRESETS", {preset: throughput.replace(PRESETS[preset], **small)})
    monkeypatch.setattr(torch.nn.Module, "compile", lambda module: None)  # minutes, and tested elsewhere
    found = throughput.measure(throughput.Case(preset, 32, 2), torch.device("cpu"), rounds=1)
    implementations = [each.partition(":")[0] for each in found]
    assert implementations == [
        f"{preset}, {each}" for each in ("cloze", "cloze, compiled", "transformers, SDPA")
    ]


def test_every_objective_is_compared_with_the_cpu():
    assert agreement.OBJECTIVES.keys() == OBJECTIVES.keys()
    assert {case.name for case in plan_memory.CASES} >= set(MEMORY_CASES)


@pytest.mark.parametrize("kind", ["clm", "rtd"])
def test_networks_and_optimizers_on_the_same_device_agree(kind: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(agreement, "OBJECTIVES", {kind: agreement.OBJECTIVES[kind]})
    found = [
        *agreement.objectives_agree(torch.device("cpu")),
        *agreement.optimizers_agree(torch.device("cpu"), ["muon"]),
    ]
    assert [each.what for each in found] == [f"{kind}, losses", f"{kind}, gradients", "muon"]
    assert report(found) == 0


def test_networks_with_other_weights_and_differences_that_are_no_numbers_do_not_agree():
    model, batch = plan_memory.network_and_batch(plan_memory.Case("mlm"))
    other = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(1.01)
    found = [*agreement.differences("mlm", model, other, batch), Check("losses", math.nan, 1.0)]
    assert [each.passed for each in found] == [False, False, False]
    assert report(found) == 1


def test_a_run_that_was_killed_is_compared_with_one_that_was_not():
    found = list(resumed_runs_are_identical(("fp32",), DS_ACCELERATOR="cpu"))
    assert len(found) == 2
    assert report(found) == 0
