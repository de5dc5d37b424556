"""Optimizers: updates by the papers' formulas or as a trusted peer makes them, groups of parameters, and state."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import TypeAdapter
from torch import Tensor, nn
from transformers.optimization import Adafactor as TransformersAdafactor

from cluster.artefacts.errors import ConfigError
from models.config import TransformerConfig
from models.elmo.config import ElmoConfig
from models.elmo.language_model import ElmoLanguageModel
from models.hf.names import to_their_names
from models.hf.t5 import FAMILY as T5
from models.initialization import init_weights
from models.language_models import MaskedLanguageModel, SequenceToSequence
from models.weights import layer_scales
from pipeline import optimizers
from pipeline.engine.deepspeed.configuration import require_hardware
from pipeline.engine.deepspeed.masters import extents_of
from pipeline.engine.interface import EngineSettings
from pipeline.optimizers import OPTIMIZERS, Optimizer, muon
from tests.pipeline.ranks import make_config

SHAPE = TransformerConfig(
    vocab_size=50, num_layers=2, hidden_size=8, num_heads=2, intermediate_size=16, max_positions=16
)


def settings_of(**given: Any) -> Optimizer:
    """The settings of any optimizer."""
    settings: Any = TypeAdapter(optimizers.OptimizerChoice).validate_python({"lr": 1e-3, **given})
    return settings


class Formula:
    """An optimizer whose `update` gives a new weight from the number of the update (from 1), the weight, its gradient
    and its state, all float64."""

    def __init__(self, update: Callable[..., Tensor], weights: Sequence[Tensor]) -> None:
        self.update, self.weights, self.number = update, weights, 0
        self.states: list[dict[str, Any]] = [{} for _ in weights]

    def step(self) -> None:
        self.number += 1
        for weight, state in zip(self.weights, self.states, strict=True):
            assert weight.grad is not None
            weight.data = self.update(self.number, weight.data, weight.grad, state)


def lamb(t: int, w: Tensor, g: Tensor, s: dict[str, Any]) -> Tensor:
    """You et al. 2020, algorithm 2; biases and norms without a trust ratio, as in the released code."""
    s["m"], s["v"] = 0.9 * s.get("m", 0) + 0.1 * g, 0.95 * s.get("v", 0) + 0.05 * g**2
    update = (s["m"] / (1 - 0.9**t)) / ((s["v"] / (1 - 0.95**t)).sqrt() + 1e-6) + 0.1 * w
    trust = float(w.norm() / update.norm()) if w.dim() > 1 and w.any() else 1.0
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


def _problem(growth: float) -> tuple[list[nn.Parameter], list[list[Tensor]]]:
    """Weights, and the gradients of five updates; each is that many times the one before, and all alike with 0."""
    generator = torch.Generator().manual_seed(3)
    shapes = [(4, 3), (5,), (2, 2)]
    weights = [nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]
    for weight in weights[1:]:
        weight.data.zero_()
    gradients = [[torch.randn(shape, generator=generator) * growth**t for shape in shapes] for t in range(5)]
    return weights, gradients if growth else [[torch.full(shape, 0.1) for shape in shapes]] * 5


def _trained(optimizer: Any, weights: Sequence[Tensor], gradients: list[list[Tensor]]) -> list[Tensor]:
    for step in gradients:
        for weight, gradient in zip(weights, step, strict=True):
            weight.grad = gradient.to(weight.dtype, copy=True)
        optimizer.step()
    return [weight.detach().float() for weight in weights]


BETAS = {"lr": 0.01, "betas": (0.9, 0.95), "eps": 1e-6, "weight_decay": 0.1}
DECAYING: dict[str, Any] = {"lr": 0.05, "weight_decay": 0.1}
PEERS: dict[str, tuple[Callable[[Any], Any], float, dict[str, Any]]] = {
    "LAMB's paper": (partial(Formula, lamb), 1.0, {"kind": "lamb", **BETAS}),
    "BERT's released code": (
        *(partial(Formula, bert_adam), 1.0),
        {"kind": "adamw", "bias_correction": False, **BETAS},
    ),
    "Lion's paper": (
        *(partial(Formula, lion), 1.0),
        {"kind": "lion", "lr": 0.01, "betas": (0.9, 0.95), "weight_decay": 0.1},
    ),
    # Gradients that outgrow the second moment, so that updates are clipped.
    "StableAdamW's paper": (partial(Formula, stable_adamw), 10.0, {"kind": "stable_adamw", **BETAS}),
    # Nothing is clipped while gradients are alike.
    "torch's AdamW": (partial(torch.optim.AdamW, **BETAS), 0.0, {"kind": "stable_adamw", **BETAS}),
    # `inverse_sqrt` from 0.01 over 10,000 steps is T5's min(0.01, 1 / sqrt(step)).
    "T5's Adafactor": (TransformersAdafactor, 1.0, {"kind": "adafactor", "lr": 0.01, "weight_decay": 0.0}),
}
for initial in (0.0, 1.0):
    shared = DECAYING | {"eps": 1e-6}
    peer = partial(torch.optim.Adagrad, initial_accumulator_value=initial, **shared)
    settings = {"kind": "adagrad", "initial_accumulator": initial, **shared}
    PEERS[f"torch's Adagrad from {initial}"] = peer, 1.0, settings
for beta1, scales in itertools.product((None, 0.9), (True, False)):
    shared = DECAYING | {"beta1": beta1, "scale_parameter": scales}
    peer = partial(TransformersAdafactor, relative_step=False, warmup_init=False, **shared)
    PEERS[f"transformers' Adafactor, {beta1}, {scales}"] = peer, 1.0, {"kind": "adafactor", **shared}


@pytest.mark.parametrize(("peer", "growth", "given"), PEERS.values(), ids=PEERS)
def test_updates_are_those_of_the_papers_or_of_a_trusted_peer(
    peer: Callable[[Any], Any], growth: float, given: dict[str, Any]
) -> None:
    weights, gradients = _problem(growth)
    exact = torch.float64 if isinstance(peer, partial) and peer.func is Formula else torch.float32
    others = [nn.Parameter(weight.detach().to(exact, copy=True)) for weight in weights]
    settings = settings_of(**given)
    ours = settings.in_torch([{"params": weights, "weight_decay": settings.weight_decay}])
    ours.param_groups[0]["lr"] = settings.lr
    found = _trained(ours, weights, gradients)
    for own, other in zip(found, _trained(peer(others), others, gradients), strict=True):
        if given["kind"] == "adagrad":
            assert torch.equal(own, other), "in torch's own kernels"
        torch.testing.assert_close(own, other, rtol=1e-5, atol=1e-6)


def test_adafactor_updates_every_matrix_of_t5_by_itself_though_networks_keep_some_as_one() -> None:
    parts = {"positions": "relative_bias", "norm": "pre", "norm_kind": "rms", "embedding_norm": False}
    shape = replace(SHAPE, network="encoder_decoder", biases=False, gated=True, initializer="fan_in", **parts)
    model = SequenceToSequence(shape)
    init_weights(model, 3)
    table = T5.body(shape, "", 0)
    theirs = {
        name: nn.Parameter(one.clone()) for name, one in to_their_names(table, model.state_dict()).items()
    }
    settings = settings_of(kind="adafactor", lr=0.01, weight_decay=0.0, beta1=0.9)
    ours = settings.make(model)
    for group in ours.param_groups:
        group["lr"] = settings.lr
    peer = TransformersAdafactor(theirs.values(), lr=0.01, beta1=0.9, relative_step=False, warmup_init=False)
    generator = torch.Generator().manual_seed(5)
    for _ in range(4):
        for own in model.parameters():
            own.grad = torch.randn(own.shape, generator=generator)
        made = {name: one.grad for name, one in model.named_parameters() if one.grad is not None}
        gradients = to_their_names(table, made)
        for name, other in theirs.items():
            other.grad = gradients[name].clone()
        ours.step()
        peer.step()
    for name, own in to_their_names(table, model.state_dict()).items():
        torch.testing.assert_close(own, theirs[name].detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("adjust", ["match_rms_adamw", "original"])
def test_muon_is_torchs_for_hidden_matrices_and_torchs_adamw_for_all_others(
    adjust: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # torch iterates in bfloat16 on CPUs too.
    monkeypatch.setattr(muon, "orthogonalised", partial(muon.orthogonalised, precision=torch.bfloat16))
    ours = MaskedLanguageModel(SHAPE)
    theirs = copy.deepcopy(ours)
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
def test_orthogonalised_matrices_keep_their_singular_vectors_with_values_near_one_in_float32(
    shape: tuple[int, int],
) -> None:
    left, _, right = torch.linalg.svd(torch.randn(shape), full_matrices=False)
    # Five iterations do not reach 1 from singular values that are far below the largest.
    matrix = left @ torch.diag(torch.linspace(0.2, 1.0, min(shape))) @ right
    found = left.T @ muon.orthogonalised(matrix) @ right.T
    assert torch.all((found.diagonal() > 0.5) & (found.diagonal() < 1.5))
    torch.testing.assert_close(found, torch.diag(found.diagonal()), rtol=0, atol=1e-4)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_state_is_as_large_as_plans_say_and_has_the_names_that_checkpoints_know(kind: str) -> None:
    settings, model = settings_of(kind=kind), MaskedLanguageModel(SHAPE)
    made = settings.make(model)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    made.step()
    tensors = [
        (key, value)
        for state in made.state.values()
        for key, value in state.items()
        if torch.is_tensor(value) and value.dim()
    ]
    elements = sum(one.numel() for one in model.parameters())
    assert sum(value.nbytes for _, value in tensors) == settings.state_bytes(elements, model)
    assert {key for key, _ in tensors} == {*settings.STATE, *settings.WHOLE_STATE}


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("world_size", [1, 2, 3, 7])
def test_the_extents_of_all_ranks_are_every_parameter_once(stage: int, world_size: int) -> None:
    sizes = [("a", 11), ("b", 1), ("c", 64), ("d", 5)]
    covered: dict[str, list[int]] = {name: [] for name, _ in sizes}
    for rank in range(world_size):
        end = 0
        for extent in extents_of(sizes, stage, world_size, rank):
            assert extent.offset >= end
            end = extent.offset + extent.size
            covered[extent.name] += range(extent.start, extent.start + extent.size)
    assert covered == {name: list(range(size)) for name, size in sizes}


@pytest.mark.parametrize(
    "settings", [{"kind": "adamw"}, {"kind": "adamw", "layer_decay": 0.8}, {"kind": "muon"}]
)
def test_every_parameter_is_in_one_group_by_name_and_size_and_only_matrices_decay(
    settings: dict[str, Any],
) -> None:
    model = MaskedLanguageModel(SHAPE)
    made = settings_of(weight_decay=0.1, **settings).make(model)
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    names = {parameter: name for name, parameter in model.named_parameters()}
    assert sorted(names[one] for group in made.param_groups for one in group["params"]) == sorted(
        names.values()
    )
    for group in made.param_groups:
        assert group["sizes"] == [(names[one], sizes[names[one]]) for one in group["params"]]
        assert {parameter.dim() > 1 for parameter in group["params"]} == {group["weight_decay"] > 0}
        assert group["lr_scale"] == 1.0 or "layer_decay" in settings
    if settings["kind"] == "adamw":
        assert type(made) is torch.optim.AdamW
        assert all(group["fused"] for group in made.param_groups)


@pytest.mark.parametrize(
    ("kind", "override", "said"),
    [
        ("lamb", "optimizer.bias_correction=false", "bias_correction"),
        ("adamw", "optimizer.initial_accumulator=1", "initial_accumulator"),
        *((kind, "zero.stage=2", r"zero\.stage 0") for kind, one in OPTIMIZERS.items() if one.NEEDS_WHOLE),
    ],
)
def test_settings_of_another_optimizer_and_shards_of_whole_tensors_are_refused(
    tmp_path: Path, kind: str, override: str, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        make_config(tmp_path, tmp_path, f"optimizer.kind={kind}", "zero.stage=0", override)
    for other in (kind for kind, one in OPTIMIZERS.items() if not one.NEEDS_WHOLE):
        make_config(tmp_path, tmp_path, f"optimizer.kind={other}", "zero.offload_optimizer.device=cpu")


@pytest.mark.parametrize(
    ("network", "distances"),
    [
        (
            lambda: MaskedLanguageModel(SHAPE),
            {
                "encoder.embeddings.tokens.weight": 3,
                "encoder.transformer.layers.0.feed_forward.up.weight": 2,
                "encoder.transformer.layers.1.attention_norm.bias": 1,
                "head.dense.weight": 0,
            },
        ),
        (
            lambda: SequenceToSequence(replace(SHAPE, network="encoder_decoder")),
            {
                "encoder.embeddings.tokens.weight": 5,
                "encoder.transformer.layers.0.attention.qkv.weight": 4,
                "encoder.transformer.layers.1.attention.qkv.weight": 3,
                "decoder.transformer.layers.0.attention.qkv.weight": 2,
                "decoder.transformer.layers.1.attention.qkv.weight": 1,
            },
        ),
        (
            lambda: ElmoLanguageModel(ElmoConfig(vocab_size=20, projection_size=8, cell_size=8)),
            {
                "encoder.tokens.projection.weight": 3,
                "encoder.forward_layers.0.input_weight": 2,
                "encoder.backward_layers.1.input_weight": 1,
                "softmax.weight": 0,
            },
        ),
    ],
    ids=["encoder", "a decoder stands on its encoder", "ELMo's directions are side by side"],
)
def test_layers_learn_slower_the_lower_they_are(
    network: Callable[[], nn.Module], distances: dict[str, int]
) -> None:
    scales = layer_scales(network(), 0.5)
    assert {name: scales[name] for name in distances} == {name: 0.5**n for name, n in distances.items()}


def test_fp16_on_cpus_is_refused_with_what_to_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError) as caught:
        require_hardware(EngineSettings.of(make_config(tmp_path, tmp_path, "precision=fp16")))
    assert "bf16" in caught.value.next_step
