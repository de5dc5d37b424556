"""The updates of optimizers are the papers' formulas, or those of a peer that is trusted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from pydantic import TypeAdapter
from torch import Tensor, nn
from transformers.optimization import Adafactor as TransformersAdafactor

from models.config import TransformerConfig
from models.language_models import MaskedLanguageModel
from pipeline import optimizers
from pipeline.optimizers import Optimizer, muon


def settings_of(**given: Any) -> Optimizer:
    """The settings of any optimizer."""
    settings: Any = TypeAdapter(optimizers.OptimizerChoice).validate_python({"lr": 1e-3, **given})
    return settings


Reference = Callable[[int, Tensor, Tensor, dict[str, Any]], Tensor]
"""From the number of an update (from 1), a weight, its gradient and its state, all float64: the new weight."""


def lamb(t: int, w: Tensor, g: Tensor, s: dict[str, Any]) -> Tensor:
    """You et al. 2020, algorithm 2."""
    s["m"], s["v"] = 0.9 * s.get("m", 0) + 0.1 * g, 0.95 * s.get("v", 0) + 0.05 * g**2
    update = (s["m"] / (1 - 0.9**t)) / ((s["v"] / (1 - 0.95**t)).sqrt() + 1e-6) + 0.1 * w
    trust = float(w.norm() / update.norm()) if w.any() else 1.0
    return w - 0.01 * min(max(trust, 0.01), 10.0) * update


def bert_adam(t: int, w: Tensor, g: Tensor, s: dict[str, Any]) -> Tensor:
    """BERT's released code, without bias correction."""
    s["m"], s["v"] = 0.9 * s.get("m", 0) + 0.1 * g, 0.95 * s.get("v", 0) + 0.05 * g**2
    return w - 0.01 * (s["m"] / (s["v"].sqrt() + 1e-6) + 0.1 * w)


def lion(t: int, w: Tensor, g: Tensor, s: dict[str, Any]) -> Tensor:
    """Chen et al. 2023, algorithm 2."""
    direction = (0.9 * s.get("m", 0) + 0.1 * g).sign()
    s["m"] = 0.95 * s.get("m", 0) + 0.05 * g
    return w - 0.01 * (direction + 0.1 * w)


def stable_adamw(t: int, w: Tensor, g: Tensor, s: dict[str, Any]) -> Tensor:
    """Wortsman et al. 2023, algorithm 2."""
    hat1, hat2 = (beta * (1 - beta ** (t - 1)) / (1 - beta**t) for beta in (0.9, 0.95))
    s["v"] = hat1 * s.get("v", 0) + (1 - hat1) * g
    s["u"] = hat2 * s.get("u", 0) + (1 - hat2) * g**2
    rms = float((g**2 / torch.clamp(s["u"], min=1e-12)).mean().sqrt())
    eta = 0.01 / max(1.0, rms)
    return w - eta * 0.1 * w - eta * s["v"] / (s["u"].sqrt() + 1e-6)


def torch_adamw(weights: Sequence[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(weights, lr=0.01, betas=(0.9, 0.95), eps=1e-6, weight_decay=0.1)


def _problem(growth: float) -> tuple[list[nn.Parameter], list[list[Tensor]]]:
    """Weights, and the gradients of five updates; each is that many times the one before, and all alike with 0."""
    generator = torch.Generator().manual_seed(3)
    shapes = [(4, 3), (5,), (2, 2)]
    weights = [nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]
    weights[1].data.zero_()
    gradients = [[torch.randn(shape, generator=generator) * growth**t for shape in shapes] for t in range(5)]
    return weights, gradients if growth else [[torch.full(shape, 0.1) for shape in shapes]] * 5


def _in_torch(weights: Sequence[nn.Parameter], **given: Any) -> torch.optim.Optimizer:
    """One group of weights under an optimizer; all of them decay."""
    settings = settings_of(**given)
    made = settings.in_torch([{"params": list(weights), "weight_decay": settings.weight_decay}])
    made.param_groups[0]["lr"] = settings.lr
    return made


def _trained(
    optimizer: torch.optim.Optimizer, weights: Sequence[Tensor], gradients: list[list[Tensor]]
) -> list[Tensor]:
    for step in gradients:
        for weight, gradient in zip(weights, step, strict=True):
            weight.grad = gradient.clone()
        optimizer.step()
    return [weight.detach() for weight in weights]


BETAS = {"lr": 0.01, "betas": (0.9, 0.95), "eps": 1e-6, "weight_decay": 0.1}


@pytest.mark.parametrize(
    ("reference", "growth", "given"),
    [
        (lamb, 1.0, {"kind": "lamb", **BETAS}),
        (bert_adam, 1.0, {"kind": "adamw", "bias_correction": False, **BETAS}),
        (lion, 1.0, {"kind": "lion", "lr": 0.01, "betas": (0.9, 0.95), "weight_decay": 0.1}),
        # Gradients that outgrow the second moment, so that updates are clipped.
        (stable_adamw, 10.0, {"kind": "stable_adamw", **BETAS}),
    ],
)
def test_updates_are_the_formulas_of_the_papers(
    reference: Reference, growth: float, given: dict[str, Any]
) -> None:
    weights, gradients = _problem(growth)
    expected = [weight.detach().double() for weight in weights]
    states: list[dict[str, Any]] = [{} for _ in weights]
    for t, step in enumerate(gradients, 1):
        expected = [
            reference(t, *each) for each in zip(expected, (g.double() for g in step), states, strict=True)
        ]
    found = _trained(_in_torch(weights, **given), weights, gradients)
    for own, other in zip(found, expected, strict=True):
        torch.testing.assert_close(own.double(), other, rtol=1e-5, atol=1e-6)


def _adafactor(**given: Any) -> Callable[[Any], torch.optim.Optimizer]:
    fixed = {"relative_step": False, "warmup_init": False, "weight_decay": 0.1, "lr": 0.05}
    return partial(TransformersAdafactor, **fixed, **given)


@pytest.mark.parametrize(
    ("peer", "growth", "given"),
    [
        *(
            (
                partial(
                    torch.optim.Adagrad, lr=0.1, eps=1e-6, weight_decay=0.1, initial_accumulator_value=initial
                ),
                1.0,
                {
                    "kind": "adagrad",
                    "lr": 0.1,
                    "eps": 1e-6,
                    "weight_decay": 0.1,
                    "initial_accumulator": initial,
                },
            )
            for initial in (0.0, 1.0)
        ),
        *(
            (_adafactor(**shared), 1.0, {"kind": "adafactor", "lr": 0.05, "weight_decay": 0.1, **shared})
            for shared in (
                {"beta1": beta1, "scale_parameter": scales}
                for beta1 in (None, 0.9)
                for scales in (True, False)
            )
        ),
        # `inverse_sqrt` from 0.01 over 10,000 steps is T5's min(0.01, 1 / sqrt(step)).
        (TransformersAdafactor, 1.0, {"kind": "adafactor", "lr": 0.01, "weight_decay": 0.0}),
        # Nothing is clipped while gradients are alike.
        (torch_adamw, 0.0, {"kind": "stable_adamw", **BETAS}),
    ],
)
def test_updates_are_those_of_a_trusted_peer(
    peer: Callable[[Any], torch.optim.Optimizer], growth: float, given: dict[str, Any]
) -> None:
    weights, gradients = _problem(growth)
    others = [nn.Parameter(weight.detach().clone()) for weight in weights]
    found = _trained(_in_torch(weights, **given), weights, gradients)
    for own, other in zip(found, _trained(peer(others), others, gradients), strict=True):
        if given["kind"] == "adagrad":
            assert torch.equal(own, other), "in torch's own kernels"
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
