"""Operations are those that the real network makes, and speeds follow from them; the slowest rank is named."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from models.config import TransformerConfig
from models.distillation import DistilledLanguageModel
from models.language_models import CausalLanguageModel, MaskedLanguageModel
from pipeline.engine.gpus import peak_flops
from pipeline.plan.flops import Flops, count_flops
from pipeline.pretrain.measure import SampleFlops, compare, device_peak, speeds
from tests.benchmarks.plan_memory import CASES, network_and_batch

VOCABULARY, HIDDEN, LAYERS, HEADS, LENGTH, ROWS = 512, 64, 3, 4, 32, 4
CONFIG = TransformerConfig(
    vocab_size=VOCABULARY,
    hidden_size=HIDDEN,
    num_layers=LAYERS,
    num_heads=HEADS,
    intermediate_size=4 * HIDDEN,
    max_positions=LENGTH,
)
CPU = torch.device("cpu")
aten = torch.ops.aten


def causal_inputs(boundaries: list[int] | None = None) -> dict[str, np.ndarray]:
    ids = np.arange(ROWS * LENGTH).reshape(ROWS, LENGTH) % VOCABULARY
    positions = np.arange(ROWS * LENGTH)
    inputs = {"input_ids": ids, "predicted_positions": positions, "targets": ids.reshape(-1)}
    return inputs | ({} if boundaries is None else {"cu_seqlens": np.asarray(boundaries, dtype=np.int32)})


def causal_lm(**changes: int) -> CausalLanguageModel:
    return CausalLanguageModel(replace(CONFIG, network="decoder", **changes))


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


def test_a_network_of_any_size_is_counted_without_its_memory():
    with torch.device("meta"):
        large = causal_lm(hidden_size=12288, num_heads=96, intermediate_size=49152)
    count = count_flops(large, causal_inputs())
    assert count.products == 6 * (LAYERS * 12 * 12288**2 + VOCABULARY * 12288) * ROWS * LENGTH


def test_a_teacher_counts_for_its_forward_pass_alone():
    inputs = causal_inputs()
    teacher = MaskedLanguageModel(replace(CONFIG, num_layers=2 * LAYERS)).to("meta")
    student = counted(MaskedLanguageModel(CONFIG), inputs)
    distilled = DistilledLanguageModel(CONFIG, teacher, temperature=2.0, hidden_loss=False)
    both = counted(distilled, inputs | {"soft_positions": inputs["predicted_positions"]})
    # Twice the layers, and a third of forward and backward.
    assert both.attention * 3 == student.attention * 5


def refuse() -> nn.Module:
    raise KeyError("no such network")


def never() -> dict[str, np.ndarray]:
    raise AssertionError("asked for again")


def test_what_cannot_even_be_built_has_no_operations():
    flops = SampleFlops(refuse)
    flops.count(LENGTH, ROWS, causal_inputs)
    assert flops.per_sample == 0


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


def test_a_processor_has_no_peak():
    assert device_peak(CPU, "bf16") is None


def test_each_sequence_length_is_counted_once():
    built = []

    def build() -> nn.Module:
        built.append(1)
        return causal_lm()

    flops = SampleFlops(build)
    flops.count(LENGTH, ROWS, causal_inputs)
    first = flops.per_sample
    assert first == counted(causal_lm(), causal_inputs()).total / ROWS > 0
    half = {name: array[..., : array.shape[-1] // 2] for name, array in causal_inputs().items()}
    flops.count(LENGTH // 2, ROWS, lambda: half)
    assert 0 < flops.per_sample < first / 2
    flops.count(LENGTH, ROWS, never)
    assert flops.per_sample == first
    assert len(built) == 2


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


def test_the_slow_rank_is_named_and_only_that():
    fast = [1.0, 1.1, 0.9, 1.0]
    slow = [1.5 * busy_s for busy_s in fast]
    comparison = compare([fast, slow, fast], ratio=1.3)
    assert comparison.stragglers == [1]
    assert comparison.group_s == 1.0
    assert comparison.metrics["slowest_rank_ratio"] == pytest.approx(1.5)
    workers = [{"rank": rank, "host": "a", "pid": rank} for rank in range(3)]
    assert [one["rank"] for one in comparison.event(workers)["ranks"]] == [1]


def test_of_two_ranks_the_slower_one_can_be_told():
    assert compare([[1.0], [1.4]], ratio=1.3).stragglers == [1]
    assert compare([[1.0], [1.2]], ratio=1.3).stragglers == []


def test_one_slow_step_makes_no_straggler():
    assert compare([[1.0, 1.0, 1.0], [1.0, 60.0, 1.0]], ratio=1.3).stragglers == []
