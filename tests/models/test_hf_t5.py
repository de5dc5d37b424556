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

T5 = {
    "network": "encoder_decoder",
    "norm": "pre",
    "norm_kind": "rms",
    "biases": False,
    "embedding_norm": False,
    "positions": "relative_bias",
    "scale_attention": False,
    "initializer": "fan_in",
}
FEED_FORWARDS = [
    "relu",
    "gated-gelu",
    "gelu",
    "gelu_new",
    "gated-relu",
    "gated-gelu_new",
    "gated-gelu_python",
]
seeds = st.integers(0, 2**31)


@st.composite
def our_configs(draw) -> TransformerConfig:
    heads, layers = draw(st.integers(1, 4)), draw(st.integers(1, 2))
    return TransformerConfig(
        **T5,
        vocab_size=61,
        max_positions=draw(st.sampled_from([24, 512])),
        num_layers=layers,
        num_decoder_layers=draw(st.sampled_from([None, 3 - layers])),
        num_heads=heads,
        hidden_size=heads * draw(st.sampled_from([4, 7])),
        attention_head_size=draw(st.none() | st.sampled_from([3, 16])),
        intermediate_size=draw(st.integers(1, 50)),
        relative_buckets=draw(st.sampled_from([4, 8, 32])),
        relative_max_distance=draw(st.sampled_from([17, 128])),
        activation=draw(st.sampled_from(["gelu", "gelu_tanh", "relu"])),
        gated=draw(st.booleans()),
        scale_logits=draw(st.booleans()),
        tie_embeddings=draw(st.booleans()),
        norm_eps=draw(st.sampled_from([1e-6, 1e-3])),
        dropout=draw(st.sampled_from([0.0, 0.1])),
        attention_dropout=draw(st.sampled_from([0.0, 0.1])),
    )


@st.composite
def their_configs(draw) -> transformers.T5Config:
    heads = draw(st.integers(1, 4))
    return transformers.T5Config(
        vocab_size=61,
        d_model=heads * draw(st.sampled_from([4, 7])),
        d_kv=draw(st.sampled_from([3, 4, 16])),
        d_ff=draw(st.integers(1, 50)),
        num_layers=draw(st.integers(1, 2)),
        num_decoder_layers=draw(st.sampled_from([None, 1, 3])),
        num_heads=heads,
        relative_attention_num_buckets=draw(st.sampled_from([4, 8, 32])),
        relative_attention_max_distance=draw(st.sampled_from([17, 128])),
        feed_forward_proj=draw(st.sampled_from(FEED_FORWARDS)),
        tie_word_embeddings=draw(st.booleans()),
        layer_norm_epsilon=draw(st.sampled_from([1e-6, 1e-3])),
        decoder_start_token_id=0,
    )


def small(**overrides) -> TransformerConfig:
    sizes = {"num_layers": 2, "hidden_size": 16, "num_heads": 4, "intermediate_size": 40}
    return TransformerConfig(**T5 | {"vocab_size": 61, "activation": "relu"} | sizes | overrides)


@pytest.fixture(scope="module")
def network(randomise) -> SequenceToSequence:
    model = SequenceToSequence(small()).eval()
    init_weights(model, 1)
    randomise(model, 2)
    return model


@settings(max_examples=8, deadline=None)
@given(config=our_configs(), seed=seeds, side=st.sampled_from(["left", "right"]))
def test_exported_network_computes_the_same_in_transformers(randomise, config, seed, side):
    ours = SequenceToSequence(config).eval()
    init_weights(ours, 1)
    randomise(ours, seed)
    assert_same_written_tokens(ours, export_of(ours, config), side, seed)


@settings(max_examples=10, deadline=None)
@given(config=their_configs(), seed=seeds, side=st.sampled_from(["left", "right"]))
def test_imported_network_computes_what_transformers_computes(randomise, config, seed, side):
    theirs = transformers.T5ForConditionalGeneration(config).eval()
    randomise(theirs, seed)
    assert_same_written_tokens(import_of(theirs), theirs, side, seed)


def test_v1_1_has_its_own_projection_and_scales_nothing(randomise):
    """`transformers` keeps both matrices apart when it reads a file in which they differ."""
    config = small(gated=True, activation="gelu_tanh", tie_embeddings=False)
    ours = SequenceToSequence(config).eval()
    init_weights(ours, 1)
    randomise(ours, 3)
    theirs = export_of(ours, config)
    assert not theirs.config.scale_decoder_outputs
    assert not torch.equal(theirs.lm_head.weight, theirs.shared.weight)
    assert_same_written_tokens(ours, theirs)
    back = import_of(theirs)
    assert back.config == config
    assert_same_written_tokens(back, theirs)


def test_training_step_is_that_of_transformers(network):
    ours, source, target = copy.deepcopy(network), some_tokens(2, 9, 3), some_tokens(2, 6, 4)
    start = torch.full((2, 1), TOKENS.pad)
    batch = {
        "input_ids": source,
        "decoder_input_ids": torch.cat([start, target[:, :-1]], 1),
        "predicted_positions": torch.arange(12),
        "targets": target.flatten(),
    }
    labels = {"input_ids": source, "labels": target}
    assert_same_training(ours, export_of(ours, ours.config), batch, labels)


def test_bare_model_is_read_as_the_one_that_writes(randomise):
    config = transformers.T5Config(vocab_size=61, d_model=16, d_kv=4, d_ff=30, num_layers=2, num_heads=4)
    theirs = transformers.T5ForConditionalGeneration(config).eval()
    randomise(theirs, 1)
    bare = transformers.T5Model(config)
    bare.load_state_dict(theirs.state_dict(), strict=False)
    assert_same_written_tokens(import_of(bare), theirs)


def test_texts_longer_than_the_largest_distance_share_the_last_bucket(randomise):
    config = transformers.T5Config(
        vocab_size=61,
        d_model=16,
        d_kv=4,
        d_ff=30,
        num_layers=1,
        num_heads=4,
        relative_attention_num_buckets=8,
        relative_attention_max_distance=20,
    )
    theirs = transformers.T5ForConditionalGeneration(config).eval()
    randomise(theirs, 1)
    ours = import_of(theirs)
    source, target = some_tokens(1, 90, 1), some_tokens(1, 70, 2)
    with torch.no_grad():
        expected = theirs(input_ids=source, decoder_input_ids=target).logits
        torch.testing.assert_close(ours.logits(source, target), expected, atol=1e-4, rtol=0)


@settings(max_examples=10, deadline=None)
@given(config=our_configs())
def test_export_and_import_are_inverse(config):
    model = SequenceToSequence(config)
    init_weights(model, 1)
    exported = export_model(model.state_dict(), config, TOKENS)
    assert exported.family == "T5"
    back = import_model(exported.tensors, exported.config)
    same = {}
    if config.num_decoder_layers == config.num_layers:
        same["num_decoder_layers"] = None
    if config.attention_size == config.hidden_size:
        same["attention_head_size"] = None
    assert back.config == TransformerConfig(**vars(config) | same)
    assert back.state_dict.keys() == model.state_dict().keys()
    assert all(torch.equal(tensor, back.state_dict[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("name", [name for name in PRESETS if name.startswith("t5")])
def test_published_sizes_have_the_tensors_that_transformers_expects(name):
    config = PRESETS[name]
    with torch.device("meta"):
        state = SequenceToSequence(config).state_dict()
    exported = export_model(state, config)
    expected = tensors_on_meta(exported.config)
    if not config.tie_embeddings:
        expected["lm_head.weight"] = [config.vocab_size, config.hidden_size]
    assert shapes(exported.tensors) == expected
    assert exported.config["feed_forward_proj"] == ("gated-gelu" if "v1.1" in name else "relu")


def test_generation_starts_with_padding(network):
    theirs = export_of(network, network.config)
    assert theirs.config.decoder_start_token_id == TOKENS.pad
    source = some_tokens(2, 7, 1)
    written = theirs.generate(source, max_length=3, do_sample=False)
    assert written[:, 0].tolist() == [TOKENS.pad] * 2
    with torch.no_grad():
        first = network.logits(source, torch.full((2, 1), TOKENS.pad))[:, -1].argmax(-1)
    assert written[:, 1].equal(first)


def test_old_files_are_read_as_published(network):
    """Copies of the embedding under all their names, a bias of cross-attention that nothing reads, a legacy name."""
    exported = export_model(network.state_dict(), network.config, TOKENS)
    old = dict(exported.tensors)
    for name in ("encoder.embed_tokens", "decoder.embed_tokens", "lm_head"):
        old[f"{name}.weight"] = old["shared.weight"].clone()
    old["decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"] = torch.ones(32, 4)
    keys = {name: value for name, value in exported.config.items() if name not in OUR_KEYS}
    back = import_model(old, keys | {"architectures": ["T5WithLMHeadModel"], "n_positions": 512})
    assert back.config == TransformerConfig(
        **vars(network.config) | {"activation_dropout": 0.1, "output_dropout": 0.1, "scale_logits": True}
    )
    assert all(torch.equal(tensor, back.state_dict[name]) for name, tensor in network.state_dict().items())


OUR_KEYS = {
    "attention_dropout",
    "activation_dropout",
    "output_dropout",
    "scale_decoder_outputs",
    "relative_attention_max_distance",
    "tie_word_embeddings",
}
"""Keys that files from before do not have."""


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"norm": "post"}, "norm is 'post', and it always has 'pre'"),
        ({"positions": "learned"}, "positions is 'learned'"),
        ({"embedding_norm": True}, "embedding_norm is True"),
        ({"scale_attention": True}, "scale_attention is True"),
        ({"scale_embeddings": True}, "scale_embeddings is True"),
        ({"norm_kind": "layer"}, "norm_kind is 'layer'"),
        ({"biases": True}, "biases is True"),
    ],
)
def test_network_that_t5_cannot_carry_is_refused(change, message):
    config = small(**change)
    with pytest.raises(ValueError, match=message):
        export_model(SequenceToSequence(config).state_dict(), config, TOKENS, family="T5")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"feed_forward_proj": "gated-mish"}, "feed_forward_proj = 'gated-mish' is not supported"),
        ({"is_encoder_decoder": False}, "is_encoder_decoder = False"),
        ({"relative_attention_num_buckets": 6}, "relative_buckets must be a multiple of 4"),
        ({"architectures": ["T5EncoderModel"]}, "T5EncoderModel"),
    ],
)
def test_computation_that_the_core_has_not_is_refused(network, change, message):
    exported = export_model(network.state_dict(), network.config, TOKENS)
    with pytest.raises(ValueError, match=message):
        import_model(exported.tensors, exported.config | change)


def test_tensors_that_do_not_fit_are_refused_by_name(network):
    exported = export_model(network.state_dict(), network.config, TOKENS)
    tensors = dict(exported.tensors)
    tensors["decoder.block.1.layer.0.SelfAttention.relative_attention_bias.weight"] = tensors.pop(
        "decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    )
    with pytest.raises(ValueError, match="does not fit") as refused:
        import_model(tensors, exported.config)
    assert "missing decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight" in str(
        refused.value
    )
    assert "unexpected decoder.block.1.layer.0.SelfAttention" in str(refused.value)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("shared.weight", torch.full((61, 16), float("nan")), r"NaN or infinite values in shared\.weight"),
        ("decoder.embed_tokens.weight", torch.zeros(61, 16), "differs from the other input embedding"),
    ],
)
def test_values_that_our_network_cannot_have_are_refused(network, name, value, message):
    exported = export_model(network.state_dict(), network.config, TOKENS)
    with pytest.raises(ValueError, match=message):
        import_model(exported.tensors | {name: value}, exported.config)
