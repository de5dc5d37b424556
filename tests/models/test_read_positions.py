"""Behind the last attention, only the positions that heads read are computed; what they read stays as it was."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import models.transformer
from models.classifiers import SequenceClassifier
from models.config import TransformerConfig
from models.features import recorded_layers
from models.initialization import init_weights
from models.language_models import CausalLanguageModel, MaskedLanguageModel
from models.peft.apply import apply_peft
from models.peft.settings import AdapterSettings, LoraSettings, MamSettings, PrefixSettings
from models.stacks import Encoder
from models.transformer import Transformer

SHAPE = {"vocab_size": 50, "num_layers": 2, "hidden_size": 32, "num_heads": 4, "intermediate_size": 64}
SHAPES = {
    "post-norm": {},
    "pre-norm, gated, rms": {"norm": "pre", "norm_kind": "rms", "gated": True, "output_dropout": 0.0},
    "relative bias": {"positions": "relative_bias", "norm": "pre", "scale_attention": False},
    "rotary, local": {"positions": "rotary", "local_window": 4, "global_every": 2},
}
PEFT = {
    "none": None,
    "houlsby": AdapterSettings(placement="houlsby", size=4),
    "pfeiffer": AdapterSettings(placement="pfeiffer", size=4),
    "parallel": AdapterSettings(placement="parallel", size=4),
    "lora": LoraSettings(targets=("query", "value", "output", "down"), dropout=0.0),
    "prefix": PrefixSettings(length=3),
    "mam": MamSettings(),
}
IDS = torch.randint(0, 50, (4, 12), generator=torch.Generator().manual_seed(0))
PRESENT = torch.arange(12) < torch.tensor([3, 12, 1, 7])[:, None]
PIECES = torch.tensor([0, 5, 12, 24, 30, 36, 48], dtype=torch.int32)
PREDICTED = torch.tensor([0, 3, 13, 14, 30, 47])
TARGETS = torch.tensor([7, 8, 9, 10, 11, 12])


def build(make, settings: dict, *arguments) -> Any:
    config = TransformerConfig(
        **{"max_positions": 16, **SHAPE, **settings}, dropout=0.0, attention_dropout=0.0
    )
    model = make(config, *arguments).double()
    init_weights(model, seed=1)
    return model


def run(model: Any, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """The outcome and all gradients."""
    model.zero_grad()
    out = model(**inputs)
    out = torch.stack([*out[0].values()]) if isinstance(out, tuple) else out
    out.square().sum().backward()
    grads = {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}
    return {"out": out.detach(), **grads}


def assert_same_with_all_positions(model: Any, inputs: dict[str, Tensor], monkeypatch) -> None:
    rows: list[int] = []
    stacks = [each for each in model.modules() if isinstance(each, Transformer)]
    last: Any = stacks[-1].layers[-1]
    with last.feed_forward.register_forward_pre_hook(
        lambda _, given: rows.append(given[0].shape[:-1].numel())
    ):
        found = run(model, inputs)
        monkeypatch.setattr(models.transformer, "WORTH_IT", 0.0)
        expected = run(model, inputs)
    assert rows[0] < rows[-1] / 2
    assert found.keys() == expected.keys()
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("recompute", [False, True])
def test_packed_masked_lm_and_pairs_lose_nothing(shape, recompute, monkeypatch):
    model = build(lambda config: MaskedLanguageModel(config, pair="nsp"), SHAPES[shape])
    model.encoder.transformer.gradient_checkpointing = recompute
    inputs = {"input_ids": IDS, "predicted_positions": PREDICTED, "targets": TARGETS, "cu_seqlens": PIECES}
    inputs["pair_labels"] = torch.tensor([0, 1, 1, 0])
    assert_same_with_all_positions(model, inputs, monkeypatch)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("padded", [False, True])
def test_classifiers_lose_nothing(shape, padded, monkeypatch):
    inputs = {"input_ids": IDS} | ({"attention_mask": PRESENT} if padded else {})
    networks = ["encoder", "decoder", "encoder_decoder"][
        : 2 if SHAPES[shape].get("positions") == "rotary" else 3
    ]
    for network in networks:
        with monkeypatch.context() as patch:
            model = build(SequenceClassifier, SHAPES[shape] | {"network": network}, 3)
            assert_same_with_all_positions(model, inputs, patch)


@pytest.mark.parametrize("method", PEFT)
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_parameter_efficient_methods_lose_nothing(method, norm, randomise, monkeypatch):
    model = build(SequenceClassifier, {"norm": norm}, 3)
    if PEFT[method] is not None:
        apply_peft(model, PEFT[method], seed=1)
    randomise(model, 2)
    assert_same_with_all_positions(model, {"input_ids": IDS, "attention_mask": PRESENT}, monkeypatch)


def test_responses_of_a_packed_decoder_lose_nothing(monkeypatch):
    model = build(CausalLanguageModel, {"network": "decoder", "norm": "pre", "embedding_norm": False})
    inputs = {"input_ids": IDS, "predicted_positions": PREDICTED, "targets": TARGETS, "cu_seqlens": PIECES}
    assert_same_with_all_positions(model, inputs, monkeypatch)


def test_all_layers_are_recorded_whole_while_a_classifier_reads_one_position():
    model = build(SequenceClassifier, {}, 3).eval()
    with recorded_layers(model) as states:
        recorded = model(IDS, attention_mask=PRESENT)
    torch.testing.assert_close(recorded, model(IDS, attention_mask=PRESENT))
    assert [tuple(state.shape) for state in states] == [(4, 12, 32)] * 3
    torch.testing.assert_close(states[-1], model.encoder(IDS, attention_mask=PRESENT))


def test_a_position_that_is_read_twice_comes_twice():
    encoder = build(Encoder, {}).eval()
    read = torch.tensor([5, 0, 5])
    torch.testing.assert_close(encoder(IDS, read=read), encoder(IDS).flatten(0, 1)[read])
