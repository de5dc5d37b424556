"""The chunked loss is the cross-entropy, without its memory."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch.profiler import ProfilerActivity, profile

from models.losses import summed_cross_entropy, sums_by_group


def some_problem(tokens: int, width: int, vocabulary: int, *, bias: bool, seed: int = 0, scale: float = 1.0):
    """float64 hidden states, weights, bias and targets."""
    generator = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64) * scale  # noqa: E731
    targets = torch.randint(vocabulary, (tokens,), generator=generator)
    return draw(tokens, width), draw(vocabulary, width), draw(vocabulary) if bias else None, targets


def reference(hidden, weight, bias, targets, factor: float = 1.0):
    """Losses, right predictions and gradients by torch, in float64."""
    leaves = [each.detach().double().requires_grad_() for each in (hidden, weight, bias) if each is not None]
    logits = F.linear(*leaves)
    each = F.cross_entropy(logits, targets, reduction="none")
    (each.sum() * factor).backward()
    return each.detach(), (logits.argmax(-1) == targets).sum(), [leaf.grad for leaf in leaves]


def measured(hidden, weight, bias, targets, dtype, factor: float = 1.0, **options):
    leaves = [each.detach().to(dtype).requires_grad_() for each in (hidden, weight, bias) if each is not None]
    found = summed_cross_entropy(*leaves, *[None] * (3 - len(leaves)), targets, **options)
    (found.total * factor).backward()
    return found, [leaf.grad for leaf in leaves]


@given(
    tokens=st.integers(0, 20),
    width=st.integers(1, 9),
    vocabulary=st.integers(1, 40),
    chunk_elements=st.integers(1, 900),
    bias=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    seed=st.integers(0, 2**31),
)
def test_value_count_and_gradients_are_those_of_cross_entropy(
    tokens, width, vocabulary, chunk_elements, bias, dtype, seed
):
    problem = some_problem(tokens, width, vocabulary, bias=bias, seed=seed)
    problem = (*(part if part is None else part.to(dtype).double() for part in problem[:3]), problem[3])
    found, gradients = measured(*problem, dtype, factor=1.7, chunk_elements=chunk_elements)
    each, right, wanted = reference(*problem, factor=1.7)
    assert found.total.dtype == found.each.dtype == torch.float32
    assert found.correct.dtype == torch.int64
    torch.testing.assert_close(found.total.double(), each.sum(), rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(found.each.double(), each, rtol=1e-5, atol=1e-5)
    assert not found.each.requires_grad
    assert found.correct == right
    with torch.no_grad():  # as evaluations compute it
        evaluated, _, _ = summed_cross_entropy(
            *(part if part is None else part.to(dtype) for part in problem[:3]),
            problem[3],
            chunk_elements=chunk_elements,
        )
    torch.testing.assert_close(evaluated, found.total.detach())
    for gradient, exact in zip(gradients, wanted, strict=True):
        assert gradient.dtype == dtype
        torch.testing.assert_close(gradient.double(), exact, rtol=1e-4, atol=2e-5)


def test_half_precision_loses_no_more_than_its_rounding():
    *parts, targets = some_problem(300, 32, 500, bias=True, seed=5, scale=0.3)
    rounded = [part.bfloat16().double() for part in parts]
    found, gradients = measured(*rounded, targets, torch.bfloat16, chunk_elements=5000)
    each, _, wanted = reference(*rounded, targets)
    assert found.total.dtype == torch.float32
    assert found.total.item() == pytest.approx(float(each.sum()), rel=2e-3)
    torch.testing.assert_close(found.each.double(), each, rtol=2e-2, atol=2e-2)
    for gradient, exact in zip(gradients, wanted, strict=True):
        assert gradient.dtype == torch.bfloat16
        assert (gradient.double() - exact).norm() < 0.02 * exact.norm()


def test_chunks_do_not_wear_away_sums_in_half_precision():
    """4,096 chunks of one token, whose gradients are all alike: summed in bfloat16 they would stop at 256."""
    hidden = torch.ones(4096, 1, dtype=torch.bfloat16)
    weight = torch.zeros(2, 1, dtype=torch.bfloat16, requires_grad=True)
    targets = torch.zeros(4096, dtype=torch.int64)
    summed_cross_entropy(hidden, weight, None, targets, chunk_elements=2).total.backward()
    assert weight.grad.tolist() == [[-2048.0], [2048.0]]


def test_of_equal_scores_one_is_the_prediction():
    hidden, weight = torch.ones(4, 1, dtype=torch.bfloat16), torch.ones(4, 1, dtype=torch.bfloat16)
    assert summed_cross_entropy(hidden, weight, None, torch.arange(4)).correct == 1


def test_sums_beyond_fp16_are_scaled_before_they_are_rounded():
    """87,400 before the loss is divided; then a factor that is beyond fp16 itself."""
    hidden = torch.full((6000, 1), 30.0, dtype=torch.float16, requires_grad=True)
    weight = torch.tensor([[0.0], [2**-9]], dtype=torch.float16, requires_grad=True)
    targets = torch.ones(6000, dtype=torch.int64)
    loss = summed_cross_entropy(hidden, weight, None, targets).total
    (loss / 4).backward()
    assert weight.grad.flatten().tolist() == pytest.approx([21_840.0, -21_840.0], rel=1e-2)
    (grad,) = torch.autograd.grad(summed_cross_entropy(hidden, weight, None, targets).total * 2.0**17, hidden)
    assert grad.flatten().tolist() == pytest.approx([-124.0] * 6000, rel=1e-2)


def test_huge_logits_stay_finite():
    hidden = torch.full((3, 2), 1e4, requires_grad=True)
    weight = torch.tensor([[1e4, 0.0], [-1e4, 0.0], [0.0, 1.0]], requires_grad=True)
    loss, correct, _ = summed_cross_entropy(hidden, weight, None, torch.tensor([0, 0, 1]))
    loss.backward()
    assert float(loss.detach()) == pytest.approx(2e8)
    assert correct == 2
    assert hidden.grad.isfinite().all()
    assert weight.grad.isfinite().all()


def test_frozen_parts_get_no_gradient_and_the_others_theirs():
    hidden, weight, bias, targets = some_problem(7, 4, 9, bias=True, seed=1)
    _, _, (_, wanted, _) = reference(hidden, weight, bias, targets)
    hidden, weight, bias = hidden.float(), weight.float().requires_grad_(), bias.float()
    summed_cross_entropy(hidden, weight, bias, targets, chunk_elements=20).total.backward()
    assert hidden.grad is None
    assert bias.grad is None
    torch.testing.assert_close(weight.grad.double(), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("trains", [False, True])
def test_memory_does_not_grow_with_tokens_times_vocabulary(trains):
    tokens, vocabulary, width, chunk_elements = 256, 1024, 4, 1 << 12
    hidden, weight = torch.randn(tokens, width), torch.randn(vocabulary, width, requires_grad=trains)
    targets = torch.randint(vocabulary, (tokens,))
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as allocated:
        loss = summed_cross_entropy(hidden, weight, None, targets, chunk_elements=chunk_elements).total
    kept = sum(event.self_cpu_memory_usage for event in allocated.events())
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as allocated_backwards:
        if trains:
            loss.backward()
    events = [*allocated.events(), *allocated_backwards.events()]
    # Here the weights are as many as the scores that exist at a time.
    assert 4 * chunk_elements <= max(event.self_cpu_memory_usage for event in events) < 8 * chunk_elements
    assert kept < (12 if trains else 4) * chunk_elements, "what waits for the backward pass"


LOSSES = st.floats(0, 100, width=32) | st.sampled_from([torch.nan, torch.inf])


@given(st.lists(st.tuples(st.integers(-1, 4), LOSSES), max_size=50))
def test_groups_are_added_up_each_by_itself(predictions):
    groups = torch.tensor([group for group, _ in predictions], dtype=torch.int64)
    each = torch.tensor([loss for _, loss in predictions], dtype=torch.float32)
    found = sums_by_group(each, groups, 4)
    expected = [[loss for own, loss in predictions if own == group] for group in range(4)]
    assert found.tolist() == [[pytest.approx(sum(own), nan_ok=True), len(own)] for own in expected]
