from __future__ import annotations

import copy

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from models.config import TransformerConfig
from models.hf.families import export_model, import_model
from models.initialization import init_weights
from models.sequence_to_sequence import SequenceToSequence
from tests.models.bart_configs import our_configs, their_configs
from tests.models.hf_parity import (
    TOKENS,
    assert_same_training,
    assert_same_written_tokens,
    export_of,
    import_of,
    shapes,
    some_tokens,
    tensors_on_meta,
)
from tests.published_networks import PRESETS

seeds = st.integers(0, 2**31)


def small(**overrides) -> TransformerConfig:
    sizes = {"num_layers": 2, "hidden_size": 16, "num_heads": 4, "intermediate_size": 40, "max_positions": 24}
    return TransformerConfig(**{"network": "encoder_decoder", "vocab_size": 61} | sizes | overrides)


@pytest.fixture(scope="module")
def network(randomise) -> SequenceToSequence:
    model = SequenceToSequence(small()).eval()
    init_weights(model, 1)
    randomise(model, 2)
    return model


@settings(max_examples=6, deadline=None)
@given(config=our_configs("post"), seed=seeds)
def test_exported_network_computes_the_same_in_transformers(randomise, config, seed):
    ours = SequenceToSequence(config).eval()
    init_weights(ours, 1)
    randomise(ours, seed)
    assert_same_written_tokens(ours, export_of(ours, config), seed=seed)


@settings(max_examples=8, deadline=None)
@given(config=their_configs(transformers.BartConfig), seed=seeds)
def test_imported_network_computes_what_transformers_computes(randomise, config, seed):
    theirs = transformers.BartForConditionalGeneration(config).eval()
    randomise(theirs, seed)
    assert_same_written_tokens(import_of(theirs), theirs, seed=seed)


def test_untied_network_computes_the_same_where_its_inputs_are_one(randomise):
    config = transformers.BartConfig(
        vocab_size=61,
        d_model=16,
        max_position_embeddings=24,
        tie_word_embeddings=False,
        **dict.fromkeys(("encoder_layers", "decoder_layers"), 1),
        **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
        **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 20),
    )
    theirs = transformers.BartForConditionalGeneration(config).eval()
    randomise(theirs, 1)
    with pytest.raises(ValueError, match=r"model\.decoder\.embed_tokens\.weight differs"):
        import_of(theirs)
    theirs.model.decoder.embed_tokens.weight.data.copy_(theirs.model.encoder.embed_tokens.weight)
    ours = import_of(theirs)
    assert not ours.config.tie_embeddings
    assert_same_written_tokens(ours, theirs)


def test_training_step_is_that_of_transformers(network):
    ours, source, target = copy.deepcopy(network), some_tokens(2, 9, 3), some_tokens(2, 6, 4)
    start = torch.full((2, 1), TOKENS.eos)
    batch = {
        "input_ids": source,
        "decoder_input_ids": torch.cat([start, target[:, :-1]], 1),
        "predicted_positions": torch.arange(12),
        "targets": target.flatten(),
    }
    labels = {"input_ids": source, "labels": target}
    assert_same_training(ours, export_of(ours, ours.config), batch, labels)


def test_bare_model_is_read_as_the_one_that_writes(randomise, network):
    theirs = export_of(network, network.config)
    assert_same_written_tokens(import_of(theirs.model), theirs)


@settings(max_examples=10, deadline=None)
@given(config=our_configs("post"))
def test_export_and_import_are_inverse(config):
    model = SequenceToSequence(config)
    init_weights(model, 1)
    exported = export_model(model.state_dict(), config, TOKENS)
    assert exported.family == "BART"
    back = import_model(exported.tensors, exported.config)
    equal_depth = config.num_decoder_layers == config.num_layers
    assert back.config == TransformerConfig(
        **vars(config) | ({"num_decoder_layers": None} if equal_depth else {})
    )
    assert back.state_dict.keys() == model.state_dict().keys()
    assert all(torch.equal(tensor, back.state_dict[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("name", ["bart-base", "bart-large"])
def test_published_sizes_have_the_tensors_that_transformers_expects(name):
    config = PRESETS[name]
    with torch.device("meta"):
        state = SequenceToSequence(config).state_dict()
    exported = export_model(state, config)
    assert shapes(exported.tensors) == tensors_on_meta(exported.config)
    assert import_model({**exported.tensors, "final_logits_bias": torch.zeros(1, 50265)}, exported.config)


def test_positions_begin_in_the_third_row(network):
    tensors = export_model(network.state_dict(), network.config, TOKENS).tensors
    for stack in ("encoder", "decoder"):
        rows = tensors[f"model.{stack}.embed_positions.weight"]
        assert rows.shape == (26, 16)
        assert not rows[:2].any()
        assert rows[2:].equal(network.state_dict()[f"{stack}.embeddings.positions.weight"])


def test_generation_starts_with_eos_and_bos_and_ends_with_eos(network):
    theirs = export_of(network, network.config)
    assert theirs.config.decoder_start_token_id == TOKENS.eos
    written = theirs.generate(some_tokens(2, 7, 1), max_length=8, do_sample=False)
    assert written[:, 0].tolist() == [TOKENS.eos] * 2
    assert written[:, 1].tolist() == [TOKENS.bos] * 2
    assert all(TOKENS.eos in row[2:] for row in written.tolist())


def test_old_files_are_read_as_published(network):
    """Copies of the embedding under all their names, versions, and no bias of the logits."""
    exported = export_model(network.state_dict(), network.config, TOKENS)
    old = dict(exported.tensors)
    del old["final_logits_bias"]
    for name in ("model.encoder.embed_tokens", "model.decoder.embed_tokens", "lm_head"):
        old[f"{name}.weight"] = old["model.shared.weight"].clone()
    old["model.encoder.version"] = old["model.decoder.version"] = torch.tensor([3.0])
    keys = {"normalize_before": False, "add_final_layer_norm": False, "normalize_embedding": True}
    found = import_model(old, exported.config | keys | {"add_bias_logits": False}).state_dict
    assert found.keys() == network.state_dict().keys()
    assert all(torch.equal(tensor, found[name]) for name, tensor in network.state_dict().items())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"norm_eps": 1e-12}, "norm_eps is 1e-12, and it always has 1e-05"),
        ({"positions": "sinusoidal"}, "positions is 'sinusoidal'"),
        ({"embedding_norm": False}, "embedding_norm is False"),
        ({"biases": False}, "biases is False"),
        ({"gated": True}, "gated is True"),
        ({"scale_logits": True}, "scale_logits is True"),
        ({"norm_kind": "rms"}, "norm_kind is 'rms'"),
    ],
)
def test_network_that_bart_cannot_carry_is_refused(change, message):
    config = small(**change)
    with pytest.raises(ValueError, match=message):
        export_model(SequenceToSequence(config).state_dict(), config, TOKENS, family="BART")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"decoder_ffn_dim": 41}, r"decoder_ffn_dim = 41 \(only 40 is supported\)"),
        ({"decoder_attention_heads": 2}, r"decoder_attention_heads = 2 \(only 4 is supported\)"),
        ({"normalize_before": True}, "normalize_before = True"),
        ({"static_position_embeddings": True}, "static_position_embeddings = True"),
        ({"is_encoder_decoder": False}, "is_encoder_decoder = False"),
        ({"activation_function": "mish"}, "activation_function = 'mish'"),
        ({"architectures": ["BartForCausalLM"]}, "BartForCausalLM"),
    ],
)
def test_computation_that_the_core_has_not_is_refused(network, change, message):
    exported = export_model(network.state_dict(), network.config, TOKENS)
    with pytest.raises(ValueError, match=message):
        import_model(exported.tensors, exported.config | change)


def test_tensors_that_do_not_fit_are_refused_by_name(network):
    exported = export_model(network.state_dict(), network.config, TOKENS)
    tensors = dict(exported.tensors)
    tensors["model.decoder.layers.1.fc3.bias"] = tensors.pop("model.decoder.layers.1.fc2.bias")
    tensors["model.encoder.embed_positions.weight"] = torch.zeros(24, 16)
    with pytest.raises(ValueError, match="does not fit") as refused:
        import_model(tensors, exported.config)
    for part in (
        "missing model.decoder.layers.1.fc2.bias",
        "unexpected model.decoder.layers.1.fc3.bias",
        "model.encoder.embed_positions.weight is [24, 16], expected [26, 16]",
    ):
        assert part in str(refused.value)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("final_logits_bias", torch.ones(1, 61), "final_logits_bias is not zero"),
        (
            "model.shared.weight",
            torch.full((61, 16), float("nan")),
            r"NaN or infinite values in model\.shared",
        ),
        ("lm_head.weight", torch.zeros(61, 16), r"ties lm_head\.weight to model\.shared\.weight"),
        ("model.encoder.embed_tokens.weight", torch.zeros(61, 16), "differs from the other input embedding"),
    ],
)
def test_values_that_our_network_cannot_have_are_refused(network, name, value, message):
    exported = export_model(network.state_dict(), network.config, TOKENS)
    with pytest.raises(ValueError, match=message):
        import_model(exported.tensors | {name: value}, exported.config)
