"""Networks as their configuration says; positions that no head reads, and padding, are not computed."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import models.transformer
from models.classifiers import SequenceClassifier
from models.config import TransformerConfig
from models.features import recorded_layers
from models.functional import dropout
from models.initialization import init_weights
from models.language_models import CausalLanguageModel, MaskedLanguageModel
from models.layout import Unpadded, make_layout, side_by_side
from models.peft.apply import apply_peft
from models.peft.settings import AdapterSettings, LoraSettings, MamSettings, PrefixSettings
from models.stacks import Decoder, Encoder
from models.transformer import Transformer, choose_backend
from tests.models.hf_oracle import assert_same_tensors
from tests.models.materials import (
    KINDS,
    LANGUAGE_MODELS,
    NETWORKS,
    gradients,
    padding,
    randomised,
    shake,
    small_config,
    some_tokens,
)


def test_network_without_a_vocabulary_is_refused_with_the_remedy():
    with pytest.raises(ValueError, match=r"vocab_size.*tokenizer"):
        Encoder(TransformerConfig())


def test_weights_are_a_function_of_seed_and_name_and_leave_the_global_generator_alone():
    def weights(model: nn.Module, seed: int, global_seed: int) -> dict[str, torch.Tensor]:
        torch.manual_seed(global_seed)
        before = torch.get_rng_state()
        init_weights(model, seed)
        assert torch.equal(torch.get_rng_state(), before)
        return model.state_dict()

    with torch.device("meta"):
        late = MaskedLanguageModel(small_config())
    with pytest.raises(ValueError, match=r"to_empty"):
        init_weights(late, seed=1)
    first = weights(MaskedLanguageModel(small_config()), 1, 0)
    assert_same_tensors(weights(late.to_empty(device="cpu"), 1, 99), first)
    other = weights(MaskedLanguageModel(small_config()), 2, 0)
    changed = {name for name in first if not torch.equal(first[name], other[name])}
    assert changed == {name for name in first if name.endswith("weight") and "norm" not in name}
    layers = [first[f"encoder.transformer.layers.{number}.attention.qkv.weight"] for number in (0, 1)]
    assert not torch.equal(*layers)
    shared = weights(SequenceClassifier(small_config(num_layers=1), 2), 1, 0)
    assert all(torch.equal(shared[name], first[name]) for name in shared if name.startswith("encoder."))


def test_distribution_is_that_of_the_config():
    sizes = {"vocab_size": 500, "hidden_size": 128, "intermediate_size": 512}
    model = MaskedLanguageModel(small_config(**sizes, num_layers=1, initializer_std=0.03))
    init_weights(model, seed=0)
    for name, tensor in model.state_dict().items():
        if name.endswith("bias"):
            assert not tensor.any()
        elif "norm" in name:
            assert (tensor == 1).all()
        else:
            assert tensor.std().item() == pytest.approx(0.03, rel=0.03)
            assert tensor.mean().item() == pytest.approx(0.0, abs=6e-4)


def test_initial_weights_are_cut_off_as_in_berts_released_code():
    """Two deviations of 0.02 at most, which leave one of 0.0176."""
    model = Encoder(small_config(vocab_size=5000, initializer_cut=2.0, initializer_std=0.02))
    init_weights(model, seed=1)
    weights = model.embeddings.tokens.weight
    assert weights.abs().max() <= 0.04
    assert weights.std().item() == pytest.approx(0.0176, abs=2e-4)


@pytest.mark.parametrize(
    ("capability", "head_size", "backend"),
    [
        ((8, 0), 64, "varlen"),
        ((9, 0), 192, "varlen"),
        ((7, 5), 64, "sdpa"),
        ((8, 6), 256, "sdpa"),
        ((8, 0), 20, "sdpa"),
    ],
)
def test_flash_attention_is_taken_only_on_gpus_and_heads_that_it_has_kernels_for(
    capability, head_size, backend
):
    config = TransformerConfig(
        vocab_size=9, num_layers=1, hidden_size=2 * head_size, num_heads=2, attention_dropout=0.0
    )
    given = {"device": torch.device("cuda"), "dtype": torch.float16, "capability": capability}
    assert choose_backend(config, "auto", **given).backend == backend
    if backend == "sdpa":
        with pytest.raises(ValueError, match="attention_backend: auto"):
            choose_backend(config, "varlen", **given)


def training_batch(network: str) -> dict[str, torch.Tensor]:
    batch = {
        "input_ids": some_tokens(2, 20, 23),
        "cu_seqlens": torch.tensor([0, 7, 20, 40], dtype=torch.int32),
        "predicted_positions": torch.tensor([0, 4, 9, 21, 25]),
        "targets": some_tokens(1, 5, 24)[0],
    }
    if network == "encoder_decoder":
        batch["decoder_input_ids"] = some_tokens(2, 14, 25)
        batch["decoder_cu_seqlens"] = torch.tensor([0, 3, 14, 28], dtype=torch.int32)
    return batch


@pytest.mark.parametrize("network", LANGUAGE_MODELS)
@pytest.mark.parametrize("kind", ["learned, post-norm", "learned, pre-norm", "relative bias"])
def test_recomputed_layers_change_no_gradient_although_there_is_dropout_and_keep_less(network, kind):
    rates = {"dropout": 0.3, "attention_dropout": 0.2, "activation_dropout": 0.1}
    config = small_config(network=network, num_layers=4, **KINDS[kind], **rates)
    model = randomised(LANGUAGE_MODELS[network](config)).train()
    found, kept = [], []
    for seed, enabled in ((5, False), (5, True), (6, True)):
        for stack in model.modules():
            if isinstance(stack, Transformer):
                stack.gradient_checkpointing = enabled
        torch.manual_seed(seed)
        sizes: list[int] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda x: sizes.append(x.numel()) or x, lambda x: x):  # noqa: B023
            found.append(gradients(model, training_batch(network)))
        kept.append(sum(sizes))
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=0)
    assert not torch.equal(*(torch.cat([each.flatten() for each in one.values()]) for one in found[1:]))
    assert kept[1] < kept[0] / 2


@pytest.mark.parametrize("network", LANGUAGE_MODELS)
def test_compiled_network_computes_the_same_and_an_encoder_without_graph_breaks(network):
    config = small_config(network=network, num_layers=1, dropout=0.0, attention_dropout=0.0)
    model, batch = randomised(LANGUAGE_MODELS[network](config)).train(), training_batch(network)
    expected, expected_gradients = model(**batch), gradients(model, batch)
    compiled = torch.compile(model, backend="aot_eager")
    torch.testing.assert_close(compiled(**batch), expected)
    found = {name.removeprefix("_orig_mod."): each for name, each in gradients(compiled, batch).items()}
    torch.testing.assert_close(found, expected_gradients)
    if network == "encoder":
        packed = {name: batch[name] for name in ("input_ids", "cu_seqlens")}
        whole = torch.compile(model.encoder, backend="aot_eager", fullgraph=True)
        torch.testing.assert_close(whole(**packed), model.encoder(**packed))


@pytest.mark.parametrize("probability", [0.05, 0.1, 0.5, 0.9])
def test_share_and_mean_of_dropout_are_those_of_the_probability_and_neighbours_independent(probability):
    torch.manual_seed(1)
    values = torch.ones(1_000_004)
    kept = dropout(values, probability, True)
    error = 5 * (probability * (1 - probability) / len(values)) ** 0.5 + 1 / 65_536
    assert (kept == 0).float().mean().item() == pytest.approx(probability, abs=error)
    assert kept.unique().tolist() == pytest.approx([0.0, 1 / (1 - probability)], rel=1e-3)
    dropped = (kept == 0).float().view(-1, 4).T
    assert torch.corrcoef(dropped).fill_diagonal_(0).abs().max() < 0.01


def test_dropout_follows_the_seed_and_its_gradient_the_mask_and_it_may_be_off():
    values = torch.randn(3, 5, requires_grad=True)
    torch.manual_seed(3)
    first = dropout(values, 0.4, True)
    torch.manual_seed(3)
    assert torch.equal(first, dropout(values, 0.4, True))
    first.sum().backward()
    assert torch.equal(values.grad == 0, first == 0)
    assert dropout(values, 0.4, False) is dropout(values, 0.0, True) is values
    assert torch.equal(dropout(values, 0.999_999, True), torch.zeros(3, 5))


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
