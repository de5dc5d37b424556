from __future__ import annotations

import copy

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from models.causal_language_model import CausalLanguageModel
from models.config import TransformerConfig
from models.decoder_classifier import DecoderClassifier
from models.hf.families import export_model, import_model
from models.initialization import init_weights
from tests.models.hf_parity import (
    TOKENS,
    assert_close_logits,
    assert_same_training,
    export_of,
    import_of,
    padding,
    shapes,
    some_tokens,
    tensors_on_meta,
)
from tests.published_networks import PRESETS

ACTIVATIONS = ["gelu", "gelu_python", "gelu_new", "gelu_fast", "gelu_pytorch_tanh", "relu"]
GPT2 = {"network": "decoder", "norm": "pre", "embedding_norm": False}
seeds = st.integers(0, 2**31)


@st.composite
def our_configs(draw) -> TransformerConfig:
    heads = draw(st.integers(1, 4))
    return TransformerConfig(
        **GPT2,
        vocab_size=61,
        max_positions=24,
        num_layers=draw(st.integers(1, 3)),
        num_heads=heads,
        hidden_size=heads * draw(st.sampled_from([2, 4, 7])) * 2,
        intermediate_size=draw(st.integers(1, 50)),
        activation=draw(st.sampled_from(["gelu", "gelu_tanh", "relu"])),
        scale_attention=draw(st.booleans()),
        tie_embeddings=draw(st.booleans()),
        norm_eps=draw(st.sampled_from([1e-5, 1e-12, 0.1])),
    )


@st.composite
def their_configs(draw) -> transformers.GPT2Config:
    heads = draw(st.integers(1, 4))
    return transformers.GPT2Config(
        vocab_size=61,
        n_positions=24,
        n_layer=draw(st.integers(1, 3)),
        n_head=heads,
        n_embd=heads * draw(st.sampled_from([2, 4, 7])) * 2,
        n_inner=draw(st.none() | st.integers(1, 50)),
        activation_function=draw(st.sampled_from(ACTIVATIONS)),
        scale_attn_weights=draw(st.booleans()),
        reorder_and_upcast_attn=draw(st.booleans()),
        tie_word_embeddings=draw(st.booleans()),
        layer_norm_epsilon=draw(st.sampled_from([1e-5, 1e-12, 0.1])),
        embd_pdrop=draw(st.sampled_from([0.0, 0.2])),
    )


@torch.no_grad()
def assert_same_next_tokens(ours, theirs, seed: int = 0) -> None:
    tokens = some_tokens(3, 20, seed)
    for side in ("left", "right"):
        mask = padding([20, 13, 1], 20, side)
        # Left to itself, `transformers` counts padding on the left as positions; its `generate` does as is done here.
        positions = (mask.long().cumsum(-1) - 1).clamp_min(0)
        expected = theirs(tokens, attention_mask=mask.long(), position_ids=positions).logits
        assert_close_logits(ours.logits(tokens, attention_mask=mask), expected, mask)
    assert_close_logits(ours.logits(tokens), theirs(tokens).logits, torch.ones(3, 20, dtype=torch.bool))


@pytest.fixture(scope="module")
def network(randomise) -> CausalLanguageModel:
    config = TransformerConfig(
        **GPT2, vocab_size=61, num_layers=2, hidden_size=16, num_heads=4, intermediate_size=40
    )
    model = CausalLanguageModel(config).eval()
    init_weights(model, 1)
    randomise(model, 2)
    return model


@settings(max_examples=8, deadline=None)
@given(config=our_configs(), seed=seeds)
def test_exported_network_computes_the_same_in_transformers(randomise, config, seed):
    ours = CausalLanguageModel(config).eval()
    init_weights(ours, 1)
    randomise(ours, seed)
    assert_same_next_tokens(ours, export_of(ours, config), seed)


@settings(max_examples=8, deadline=None)
@given(config=their_configs(), seed=seeds)
def test_imported_network_computes_what_transformers_computes(randomise, config, seed):
    theirs = transformers.GPT2LMHeadModel(config).eval()
    randomise(theirs, seed)
    assert_same_next_tokens(import_of(theirs), theirs, seed)


def test_training_step_is_that_of_transformers(network):
    ours, tokens = copy.deepcopy(network), some_tokens(2, 12, 3)
    places = torch.arange(24).view(2, 12)[:, :-1].flatten()
    batch = {"input_ids": tokens, "predicted_positions": places, "targets": tokens[:, 1:].flatten()}
    labels = {"input_ids": tokens, "labels": tokens}
    assert_same_training(ours, export_of(ours, ours.config), batch, labels)


@torch.no_grad()
def assert_same_labels(ours, theirs, seed: int = 0) -> None:
    """The last token speaks, whichever side is padded; `transformers` finds it by the id of padding."""
    tokens, pad = some_tokens(3, 20, seed), theirs.config.pad_token_id
    for side in ("left", "right"):
        mask = padding([20, 13, 1], 20, side)
        ids, positions = tokens.where(mask, pad), (mask.long().cumsum(-1) - 1).clamp_min(0)
        expected = theirs(ids, attention_mask=mask.long(), position_ids=positions).logits
        torch.testing.assert_close(ours(ids, attention_mask=mask), expected, atol=1e-4, rtol=0)


@settings(max_examples=4, deadline=None)
@given(config=our_configs(), seed=seeds, num_labels=st.integers(1, 4))
def test_exported_classifier_computes_the_same_in_transformers(randomise, config, seed, num_labels):
    ours = DecoderClassifier(config, num_labels).eval()
    init_weights(ours, 1)
    randomise(ours, seed)
    theirs = export_of(ours, config)
    assert isinstance(theirs, transformers.GPT2ForSequenceClassification)
    assert theirs.config.num_labels == num_labels
    assert_same_labels(ours, theirs, seed)


@settings(max_examples=4, deadline=None)
@given(config=their_configs(), seed=seeds, num_labels=st.integers(1, 4))
def test_imported_classifier_computes_what_transformers_computes(randomise, config, seed, num_labels):
    config.num_labels, config.pad_token_id = num_labels, 0
    theirs = transformers.GPT2ForSequenceClassification(config).eval()
    randomise(theirs, seed)
    assert_same_labels(import_of(theirs), theirs, seed)


def test_bare_model_is_read_as_the_language_model_that_it_is(randomise):
    config = transformers.GPT2Config(vocab_size=61, n_positions=24, n_layer=2, n_head=4, n_embd=16)
    theirs = transformers.GPT2LMHeadModel(config).eval()
    randomise(theirs, 1)
    assert_same_next_tokens(import_of(theirs.transformer), theirs)


@settings(max_examples=10, deadline=None)
@given(config=our_configs())
def test_export_and_import_are_inverse(config):
    model = CausalLanguageModel(config)
    init_weights(model, 1)
    exported = export_model(model.state_dict(), config, TOKENS)
    back = import_model(exported.tensors, exported.config)
    # Every GPT-2 starts as GPT-2 does.
    assert back.config == TransformerConfig(
        **vars(config) | {"initializer": "scaled_residual", "position_std": 0.01}
    )
    assert back.state_dict.keys() == model.state_dict().keys()
    assert all(torch.equal(tensor, back.state_dict[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("name", ["gpt2", "gpt2-medium", "gpt3-350m", "gpt3-1.3b"])
def test_published_sizes_have_the_tensors_that_transformers_expects(name):
    config = PRESETS[name]
    with torch.device("meta"):
        state = CausalLanguageModel(config).state_dict()
    exported = export_model(state, config)
    assert shapes(exported.tensors) == tensors_on_meta(exported.config)
    assert import_model(exported.tensors, exported.config).config == config


def test_file_without_prefix_and_with_causal_masks_is_read_as_published(network):
    exported = export_model(network.state_dict(), network.config, TOKENS)
    old = {name.removeprefix("transformer."): tensor for name, tensor in exported.tensors.items()}
    for number in range(2):
        old[f"h.{number}.attn.bias"] = torch.ones(24, 24).tril()[None, None]
        old[f"h.{number}.attn.masked_bias"] = torch.tensor(-1e4)
    found = import_model(old, exported.config).state_dict
    assert all(torch.equal(tensor, found[name]) for name, tensor in network.state_dict().items())


def test_generation_knows_the_special_tokens(network):
    theirs = export_of(network, network.config)
    known = theirs.generation_config
    assert (known.bos_token_id, known.eos_token_id, known.pad_token_id) == (4, 5, 3)
    prompt = some_tokens(2, 5, 1)
    with torch.no_grad():
        written = theirs.generate(prompt, max_new_tokens=1, do_sample=False, attention_mask=torch.ones(2, 5))
        assert written[:, -1].equal(network.logits(prompt)[:, -1].argmax(-1))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"norm": "post"}, "norm is 'post', and it always has 'pre'"),
        ({"positions": "rotary"}, "positions is 'rotary'"),
        ({"norm_kind": "rms"}, "norm_kind is 'rms'"),
        ({"gated": True}, "gated is True"),
        ({"local_window": 4}, "local_window is 4"),
        ({"attention_head_size": 8}, "attention_head_size is 8"),
        ({"biases": False}, "biases is False"),
        ({"num_segments": 2}, "num_segments is 2"),
        ({"scale_logits": True}, "scale_logits is True"),
    ],
)
def test_network_that_gpt2_cannot_carry_is_refused(small_config, change, message):
    config = small_config(**GPT2 | change)
    with pytest.raises(ValueError, match=message):
        export_model(CausalLanguageModel(config).state_dict(), config, TOKENS, family="GPT-2")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx = True"),
        ({"add_cross_attention": True}, "add_cross_attention = True"),
        ({"activation_function": "mish"}, "activation_function = 'mish' is not supported.*gelu"),
        ({"n_head": 5}, "multiple of num_heads"),
        ({"architectures": ["GPT2DoubleHeadsModel"]}, "GPT2DoubleHeadsModel.*supported: .*GPT2LMHeadModel"),
    ],
)
def test_computation_that_the_core_has_not_is_refused(network, change, message):
    exported = export_model(network.state_dict(), network.config, TOKENS)
    with pytest.raises(ValueError, match=message):
        import_model(exported.tensors, exported.config | change)


def test_tensors_that_do_not_fit_are_refused_by_name(network):
    exported = export_model(network.state_dict(), network.config, TOKENS)
    tensors = dict(exported.tensors)
    tensors["transformer.h.7.ln_1.weight"] = tensors.pop("transformer.h.1.ln_1.weight")
    tensors["transformer.h.0.mlp.c_fc.weight"] = tensors["transformer.h.0.mlp.c_fc.weight"].t()
    with pytest.raises(ValueError, match="does not fit") as refused:
        import_model(tensors, exported.config)
    for part in (
        r"missing transformer.h.1.ln_1.weight",
        r"unexpected transformer.h.7.ln_1.weight",
        r"c_fc.weight is [40, 16], expected [16, 40]",
    ):
        assert part in str(refused.value)


def test_weights_that_are_not_finite_are_refused_by_name(network):
    exported = export_model(network.state_dict(), network.config, TOKENS)
    broken = exported.tensors | {"transformer.wpe.weight": torch.full((512, 16), float("nan"))}
    with pytest.raises(ValueError, match=r"NaN or infinite values in transformer\.wpe\.weight"):
        import_model(broken, exported.config)
    state = network.state_dict() | {
        "decoder.embeddings.positions.weight": torch.full((512, 16), float("inf"))
    }
    with pytest.raises(ValueError, match=r"NaN or infinite values in decoder\.embeddings\.positions\.weight"):
        export_model(state, network.config, TOKENS)


def test_tied_tensors_that_differ_are_refused(network):
    exported = export_model(network.state_dict(), network.config, TOKENS)
    tensors = exported.tensors | {"lm_head.weight": torch.zeros(61, 16)}
    with pytest.raises(
        ValueError, match=r"ties lm_head\.weight to transformer\.wte\.weight, but their values"
    ):
        import_model(tensors, exported.config)
