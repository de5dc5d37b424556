"""The benchmark for GPUs runs on any device, so that it works on the day a GPU is at hand."""

from __future__ import annotations

import pytest
import torch

from models.weights import count_parameters
from tests.benchmarks.gpu import throughput
from tests.published_networks import PRESETS


@pytest.mark.parametrize("preset", ["bert-tiny", "gpt2"])
def test_every_implementation_is_measured(preset: str, monkeypatch: pytest.MonkeyPatch):
    small = {"num_layers": 1, "hidden_size": 32, "num_heads": 2, "intermediate_size": 64, "vocab_size": 100}
    monkeypatch.setattr(throughput, "PRESETS", {preset: throughput.replace(PRESETS[preset], **small)})
    monkeypatch.setattr(torch.nn.Module, "compile", lambda module: None)  # minutes, and tested elsewhere
    found = throughput.measure(throughput.Case(preset, 32, 2), torch.device("cpu"), rounds=1)
    assert [each.what.partition(", ")[2] for each in found] == [
        "cloze",
        "cloze, compiled",
        "transformers, SDPA",
    ]
    assert all(each.tokens_per_s > 0 for each in found)


def test_flops_of_a_token_are_six_times_the_parameters_and_attention():
    case = throughput.Case("gpt3-350m", 2048, 8)
    with torch.device("meta"):
        parameters = count_parameters(throughput.CausalLanguageModel(case.config))
    without_positions = parameters - 2048 * case.config.hidden_size
    attention = 12 * 24 * 1024 * 2048 / throughput.PIECES_PER_ROW
    assert throughput.flops_per_token(case) == pytest.approx(6 * without_positions + attention, rel=0.01)
