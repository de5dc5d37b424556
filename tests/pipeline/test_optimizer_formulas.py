"""The updates of optimizers are the papers' formulas, or those of a peer that is trusted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from pydantic import TypeAdapter
from torch import Tensor, nn
from transformers.optimization import Adafactor as TransformersAdafactor

from models.config import TransformerConfig
from models.masked_language_model import MaskedLanguageModel
from pipeline import optimizers
from pipeline.optimizers import Optimizer, muon


def settings_of(**given: Any) -> Optimizer:
    """The settings of any optimizer."""
    settings: Any = TypeAdapter(optimizers.OptimizerChoice).validate_python({"lr": 1e-3, **given})
    return settings


def _trained(
    optimizer: torch.optim.Optimizer, weights: Sequence[Tensor], gradients: list[list[Tensor]]
) -> list[Tensor]:
    for step in gradients:
        for weight, gradient in zip(weights, step, strict=True):
            weight.grad = gradient.clone()
        optimizer.step()
    return [weight.detach() for weight in weights]


def _problem() -> tuple[list[nn.Parameter], list[list[Tensor]]]:
    generator = torch.Generator().manual_seed(3)
    shapes = [(4, 3), (5,), (2, 2)]
    weights = [nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]
    weights[1].data.zero_()
    return weights, [[torch.randn(shape, generator=generator) for shape in shapes] for _ in range(5)]


def test_lamb_is_algorithm_2_of_the_paper() -> None:
    weights, gradients = _problem()
    expected = [weight.detach().double() for weight in weights]
    means, squares = ([torch.zeros_like(weight) for weight in expected] for _ in range(2))
    for step, of_step in enumerate(gradients, 1):
        for i, gradient in enumerate(of_step):
            means[i] = 0.9 * means[i] + 0.1 * gradient.double()
            squares[i] = 0.95 * squares[i] + 0.05 * gradient.double() ** 2
            ratio = (means[i] / (1 - 0.9**step)) / ((squares[i] / (1 - 0.95**step)).sqrt() + 1e-6)
            update = ratio + 0.1 * expected[i]
            trust = float(expected[i].norm() / update.norm()) if expected[i].any() else 1.0
            expected[i] = expected[i] - 0.01 * min(max(trust, 0.01), 10.0) * update
    optimizer = _in_torch(weights, kind="lamb", lr=0.01, betas=(0.9, 0.95), eps=1e-6, weight_decay=0.1)
    for found, wanted in zip(_trained(optimizer, weights, gradients), expected, strict=True):
        torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("initial", [0.0, 1.0])
def test_adagrad_is_torchs_bit_for_bit(initial: float) -> None:
    weights, gradients = _problem()
    others = [nn.Parameter(weight.detach().clone()) for weight in weights]
    begun = {"initial_accumulator": initial}
    optimizer = _in_torch(weights, kind="adagrad", lr=0.1, eps=1e-6, weight_decay=0.1, **begun)
    ours = _trained(optimizer, weights, gradients)
    reference = torch.optim.Adagrad(
        others, lr=0.1, eps=1e-6, weight_decay=0.1, initial_accumulator_value=initial
    )
    for found, wanted in zip(ours, _trained(reference, others, gradients), strict=True):
        assert torch.equal(found, wanted)


def test_adam_without_bias_correction_is_berts_released_formula() -> None:
    weights, gradients = _problem()
    expected = [weight.detach().double() for weight in weights]
    means, squares = ([torch.zeros_like(weight) for weight in expected] for _ in range(2))
    for of_step in gradients:
        for i, gradient in enumerate(of_step):
            means[i] = 0.9 * means[i] + 0.1 * gradient.double()
            squares[i] = 0.999 * squares[i] + 0.001 * gradient.double() ** 2
            update = means[i] / (squares[i].sqrt() + 1e-6) + (
                0.1 * expected[i] if expected[i].dim() > 1 else 0
            )
            expected[i] = expected[i] - 0.01 * update
    settings = settings_of(bias_correction=False, betas=(0.9, 0.999), weight_decay=0.1)
    optimizer = settings.make(nn.ParameterList(weights))
    for group in optimizer.param_groups:
        group["lr"] = 0.01
    for step in gradients:
        for weight, gradient in zip(weights, step, strict=True):
            weight.grad = gradient.clone()
        optimizer.step()
    for found, wanted in zip(weights, expected, strict=True):
        torch.testing.assert_close(found.detach().double(), wanted, rtol=1e-4, atol=1e-5)


def test_lion_is_algorithm_2_of_its_paper() -> None:
    weights, gradients = _problem()
    expected, means = (
        [weight.detach().double() for weight in weights],
        [torch.zeros(()).double()] * len(weights),
    )
    for of_step in gradients:
        for i, gradient in enumerate(of_step):
            direction = (0.9 * means[i] + 0.1 * gradient.double()).sign()
            expected[i] = expected[i] - 0.01 * (direction + 0.1 * expected[i])
            means[i] = 0.99 * means[i] + 0.01 * gradient.double()
    optimizer = _in_torch(weights, kind="lion", lr=0.01, betas=(0.9, 0.99), weight_decay=0.1)
    for found, wanted in zip(_trained(optimizer, weights, gradients), expected, strict=True):
        torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-6)


def _in_torch(weights: Sequence[nn.Parameter], **given: Any) -> torch.optim.Optimizer:
    """One group of weights under an optimizer; all of them decay."""
    settings = settings_of(**given)
    group = {"params": list(weights), "weight_decay": settings.weight_decay}
    made = settings.in_torch([group])
    made.param_groups[0]["lr"] = settings.lr
    return made


@pytest.mark.parametrize("beta1", [None, 0.9])
@pytest.mark.parametrize("scales", [True, False])
def test_adafactor_is_transformers(beta1: float | None, scales: bool) -> None:
    weights, gradients = _problem()
    others = [nn.Parameter(weight.detach().clone()) for weight in weights]
    shared = {"beta1": beta1, "scale_parameter": scales, "weight_decay": 0.1, "lr": 0.05}
    reference = TransformersAdafactor(others, relative_step=False, warmup_init=False, **shared)
    expected = _trained(reference, others, gradients)
    found = _trained(_in_torch(weights, kind="adafactor", **shared), weights, gradients)
    for own, other in zip(found, expected, strict=True):
        torch.testing.assert_close(own, other, rtol=1e-5, atol=1e-6)


def test_adafactor_with_t5s_schedule_has_the_papers_relative_steps() -> None:
    """`inverse_sqrt` from 0.01 over 10,000 steps is min(0.01, 1 / sqrt(step)); this looks at the optimizer alone."""
    weights, gradients = _problem()
    others = [nn.Parameter(weight.detach().clone()) for weight in weights]
    expected = _trained(TransformersAdafactor(others), others, gradients)
    optimizer = _in_torch(weights, kind="adafactor", lr=0.01, weight_decay=0.0)
    for own, other in zip(_trained(optimizer, weights, gradients), expected, strict=True):
        torch.testing.assert_close(own, other, rtol=1e-5, atol=1e-6)


def test_stable_adamw_is_algorithm_2_of_its_paper() -> None:
    weights, gradients = _problem()
    # Gradients that outgrow the second moment, so that updates are clipped.
    gradients = [[gradient * 10.0**step for gradient in row] for step, row in enumerate(gradients)]
    lr, beta1, beta2, eps, decay = 0.01, 0.9, 0.95, 1e-6, 0.1
    expected = [weight.detach().double() for weight in weights]
    v, u = ([torch.zeros_like(weight) for weight in expected] for _ in range(2))
    clipped = 0
    for t, row in enumerate(gradients, 1):
        hat1 = beta1 * (1 - beta1 ** (t - 1)) / (1 - beta1**t)
        hat2 = beta2 * (1 - beta2 ** (t - 1)) / (1 - beta2**t)
        for i, g in enumerate(gradient.double() for gradient in row):
            v[i] = hat1 * v[i] + (1 - hat1) * g
            u[i] = hat2 * u[i] + (1 - hat2) * g**2
            rms = (g**2 / torch.maximum(u[i], torch.tensor(eps**2))).mean().sqrt()
            clipped += float(rms) > 1.5
            eta = lr / max(1.0, float(rms))
            expected[i] = expected[i] - eta * decay * expected[i] - eta * v[i] / (u[i].sqrt() + eps)
    assert clipped
    optimizer = _in_torch(
        weights, kind="stable_adamw", lr=lr, betas=(beta1, beta2), eps=eps, weight_decay=decay
    )
    for found, wanted in zip(_trained(optimizer, weights, gradients), expected, strict=True):
        torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-6)


def test_stable_adamw_is_adamw_while_gradients_are_alike() -> None:
    weights, _ = _problem()
    gradients = [[torch.full_like(weight, 0.1).detach() for weight in weights]] * 5
    others = [nn.Parameter(weight.detach().clone()) for weight in weights]
    shared = {"lr": 0.01, "betas": (0.9, 0.95), "eps": 1e-6, "weight_decay": 0.1}
    found = _trained(_in_torch(weights, kind="stable_adamw", **shared), weights, gradients)
    expected = _trained(torch.optim.AdamW(others, **shared), others, gradients)
    for own, other in zip(found, expected, strict=True):
        torch.testing.assert_close(own, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("adjust", ["match_rms_adamw", "original"])
def test_muon_is_torchs_for_hidden_matrices_and_torchs_adamw_for_all_others(
    adjust: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # torch iterates in bfloat16 on CPUs too.
    monkeypatch.setattr(muon, "_precision", lambda device: torch.bfloat16)
    ours, theirs = _networks()
    shared = {"weight_decay": 0.1, "lr": 0.02}
    settings = settings_of(kind="muon", adjust_lr=adjust, adamw_lr=0.01, eps=1e-8, **shared)
    optimizer = settings.make(ours)
    assert [group["lr_scale"] for group in optimizer.param_groups] == [1.0, 0.5, 0.5]
    for group in optimizer.param_groups:
        group["lr"] = settings.lr * group["lr_scale"]
    named = dict(theirs.named_parameters())
    hidden = [one for name, one in named.items() if ".layers." in name and one.dim() == 2]
    decayed = [one for name, one in named.items() if ".layers." not in name and one.dim() == 2]
    spared = [one for one in named.values() if one.dim() < 2]
    references = [
        torch.optim.Muon(hidden, adjust_lr_fn=adjust, **shared),
        torch.optim.AdamW(decayed, lr=0.01, betas=(0.9, 0.98), eps=1e-8, weight_decay=0.1),
        torch.optim.AdamW(spared, lr=0.01, betas=(0.9, 0.98), eps=1e-8, weight_decay=0.0),
    ]
    generator = torch.Generator().manual_seed(5)
    for _ in range(4):
        for own, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            own.grad = torch.randn(own.shape, generator=generator)
            other.grad = own.grad.clone()
        for each in (optimizer, *references):
            each.step()
    for own, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(own, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", [(6, 6), (4, 9), (9, 4)])
def test_orthogonalised_matrices_have_the_singular_vectors_of_before_and_values_near_one(
    shape: tuple[int, int],
) -> None:
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(3))
    left, _, right = torch.linalg.svd(matrix, full_matrices=False)
    # Five iterations do not reach 1 from singular values that are far below the largest.
    matrix = left @ torch.diag(torch.linspace(0.2, 1.0, min(shape))) @ right
    found = left.T @ muon.orthogonalised(matrix) @ right.T
    assert torch.all((found.diagonal() > 0.5) & (found.diagonal() < 1.5))
    torch.testing.assert_close(found, torch.diag(found.diagonal()), rtol=0, atol=1e-4)


def _networks() -> tuple[nn.Module, nn.Module]:
    """Two equal networks."""
    shape = TransformerConfig(
        vocab_size=50, num_layers=2, hidden_size=8, num_heads=2, intermediate_size=16, max_positions=16
    )
    ours, theirs = MaskedLanguageModel(shape), MaskedLanguageModel(shape)
    theirs.load_state_dict(ours.state_dict())
    return ours, theirs
