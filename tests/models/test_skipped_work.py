"""Positions that no head reads, and padding, are not computed; states and gradients stay as they were."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import models.transformer
from models.classifiers import SequenceClassifier
from models.features import recorded_layers
from models.initialization import init_weights
from models.language_models import CausalLanguageModel, MaskedLanguageModel
from models.layout import Unpadded, make_layout, side_by_side
from models.peft.apply import apply_peft
from models.peft.settings import AdapterSettings, LoraSettings, MamSettings, PrefixSettings
from models.stacks import Decoder, Encoder
from models.transformer import Transformer
from tests.models.materials import KINDS, NETWORKS, padding, shake, small_config, some_tokens

SHAPES = {name: KINDS[name] for name in ("learned, post-norm", "relative bias", "rotary, local windows")}
SHAPES["pre-norm, gated"] = {"norm": "pre", "norm_kind": "rms", "gated": True}
PEFT = {
    "houlsby": AdapterSettings(placement="houlsby", size=4),
    "pfeiffer": AdapterSettings(placement="pfeiffer", size=4),
    "parallel": AdapterSettings(placement="parallel", size=4),
    "lora": LoraSettings(targets=("query", "value", "output", "down"), dropout=0.0),
    "prefix": PrefixSettings(length=3),
    "mam": MamSettings(),
}
IDS, PRESENT = some_tokens(4, 12, 0), padding([3, 12, 1, 7], 12)
PACKED = {
    "input_ids": IDS,
    "cu_seqlens": torch.tensor([0, 5, 12, 24, 30, 36, 48], dtype=torch.int32),
    "predicted_positions": torch.tensor([0, 3, 13, 14, 30, 47]),
    "targets": torch.tensor([7, 8, 9, 10, 11, 12]),
}


def build(make: Any, settings: dict[str, Any], *arguments: Any) -> Any:
    model = make(small_config(**settings | {"dropout": 0.0, "attention_dropout": 0.0}), *arguments).double()
    init_weights(model, seed=1)
    return model


def outcome(model: nn.Module, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """The result and all gradients."""
    model.zero_grad()
    out = model(**inputs)
    out = torch.stack([*out[0].values()]) if isinstance(out, tuple) else out
    out.square().sum().backward()
    grads = {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}
    return {"out": out.detach(), **grads}


def assert_same_with_all_positions(
    model: nn.Module, inputs: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: list[int] = []
    stacks = [each for each in model.modules() if isinstance(each, Transformer)]
    last: Any = stacks[-1].layers[-1]
    with last.feed_forward.register_forward_pre_hook(
        lambda _, given: rows.append(given[0].shape[:-1].numel())
    ):
        found = outcome(model, inputs)
        monkeypatch.setattr(models.transformer, "WORTH_IT", 0.0)
        expected = outcome(model, inputs)
    assert rows[0] < rows[-1] / 2
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


MASKED = (lambda config: MaskedLanguageModel(config, pair="nsp"), "encoder")
MODELS: dict[str, tuple[Any, str, dict[str, Tensor]]] = {
    **dict.fromkeys(
        ("packed masked LM with pairs", "packed masked LM with pairs, recomputed"),
        (*MASKED, PACKED | {"pair_labels": torch.tensor([0, 1, 1, 0])}),
    ),
    "responses of a packed decoder": (CausalLanguageModel, "decoder", PACKED),
    **{
        f"classifier, {network}, {name}": (lambda config: SequenceClassifier(config, 3), network, inputs)
        for network in NETWORKS
        for name, inputs in (
            ("padded", {"input_ids": IDS, "attention_mask": PRESENT}),
            ("full", {"input_ids": IDS}),
        )
    },
}
"""Networks, their kind, and inputs."""


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", MODELS)
def test_networks_lose_nothing(shape, name, monkeypatch):
    make, network, inputs = MODELS[name]
    model = build(make, SHAPES[shape] | {"network": network})
    for stack in model.modules():
        if isinstance(stack, Transformer):
            stack.gradient_checkpointing = "recomputed" in name
    assert_same_with_all_positions(model, inputs, monkeypatch)


@pytest.mark.parametrize("method", PEFT)
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_parameter_efficient_methods_lose_nothing(method, norm, monkeypatch):
    model = apply_peft(build(SequenceClassifier, {"norm": norm}, 3), PEFT[method], seed=1)
    shake(model, 2)
    assert_same_with_all_positions(model, {"input_ids": IDS, "attention_mask": PRESENT}, monkeypatch)


def test_all_layers_are_recorded_whole_while_a_classifier_reads_one_position():
    model = build(SequenceClassifier, {}, 3).eval()
    with recorded_layers(model) as states:
        recorded = model(IDS, attention_mask=PRESENT)
    torch.testing.assert_close(recorded, model(IDS, attention_mask=PRESENT))
    assert [tuple(state.shape) for state in states] == [(4, 12, 16)] * 3
    torch.testing.assert_close(states[-1], model.encoder(IDS, attention_mask=PRESENT))


def test_a_position_that_is_read_twice_comes_twice():
    encoder, read = build(Encoder, {}).eval(), torch.tensor([5, 0, 5])
    torch.testing.assert_close(encoder(IDS, read=read), encoder(IDS).flatten(0, 1)[read])


@given(st.lists(st.integers(0, 12), min_size=1, max_size=30), st.sampled_from(["left", "right"]))
def test_every_token_of_texts_side_by_side_has_a_place_of_its_own(lengths, side):
    present = padding(lengths, 12, side)
    layout = make_layout(present.long(), None, present, max_positions=None)
    places, rows = side_by_side(Unpadded.of(present), layout)
    if rows is layout:
        return
    texts = [[text, place] for text, length in enumerate(lengths) for place in range(length)]
    pieces, positions = rows.piece_ids.flatten(), rows.position_ids.flatten()
    assert torch.stack((pieces, positions), 1)[places.index].tolist() == texts
    assert (pieces >= 0).sum() == len(texts)
    # Windows of attention count columns.
    assert (places.index.diff()[torch.tensor(texts)[1:, 1] > 0] == 1).all()
    assert (places.index // rows.length).unique().numel() == rows.batch < len(lengths)


@pytest.mark.parametrize("side", ["left", "right", "inside"])
@pytest.mark.parametrize("shape", [*SHAPES, "left to right"])
@pytest.mark.parametrize("skipped", ["unpadded", "side_by_side"])
def test_states_and_gradients_are_those_of_texts_in_rows_of_their_own(shape, side, skipped, monkeypatch):
    """With padding computed like tokens, and with texts in rows of their own."""
    network = build(Encoder, SHAPES[shape]) if shape in SHAPES else build(Decoder, {"network": "decoder"})
    ids, present = some_tokens(5, 14, 0), padding([3, 12, 1, 7, 2], 14, "left" if side == "left" else "right")
    if side == "inside":
        present[1, 4] = False
    layout = make_layout(ids, None, present, max_positions=None)
    assert side_by_side(Unpadded.of(present), layout)[1].batch == (5 if side == "inside" else 3)
    read = present.flatten().nonzero().squeeze(1)[::2].contiguous()

    def computed() -> list[Tensor]:
        network.zero_grad()
        states = [
            network(ids, attention_mask=present)[present],
            network(ids, attention_mask=present, read=read),
        ]
        torch.cat(states).square().sum().backward()
        return [*states, *(each.grad.clone() for each in network.parameters() if each.grad is not None)]

    found = computed()
    plain = {"unpadded": lambda present: None, "side_by_side": lambda places, layout: (places, layout)}
    monkeypatch.setattr(models.transformer, skipped, plain[skipped])
    torch.testing.assert_close(found, computed(), rtol=1e-11, atol=1e-11)
