from __future__ import annotations

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
    assert_same_written_tokens,
    export_of,
    import_of,
    shapes,
    some_tokens,
    tensors_on_meta,
)
from tests.published_networks import PRESETS

seeds = st.integers(0, 2**31)


@settings(max_examples=6, deadline=None)
@given(config=our_configs("pre"), seed=seeds)
def test_exported_network_computes_the_same_in_transformers(randomise, config, seed):
    ours = SequenceToSequence(config).eval()
    init_weights(ours, 1)
    randomise(ours, seed)
    theirs = export_of(ours, config)
    assert isinstance(theirs, transformers.MBartForConditionalGeneration)
    assert_same_written_tokens(ours, theirs, seed=seed)
    assert theirs.config.decoder_start_token_id is None, "a tag that only who generates can know"
    prompt = {"decoder_start_token_id": 17, "max_length": 6, "do_sample": False}
    written = theirs.generate(some_tokens(2, 7, 1), **prompt)
    assert written[:, 0].tolist() == [17, 17]
    assert all(TOKENS.eos in row[1:] for row in written.tolist())


@settings(max_examples=8, deadline=None)
@given(config=their_configs(transformers.MBartConfig), seed=seeds)
def test_imported_network_computes_what_transformers_computes(randomise, config, seed):
    theirs = transformers.MBartForConditionalGeneration(config).eval()
    randomise(theirs, seed)
    assert_same_written_tokens(import_of(theirs), theirs, seed=seed)


@settings(max_examples=10, deadline=None)
@given(config=our_configs("pre"))
def test_export_and_import_are_inverse(config):
    model = SequenceToSequence(config)
    init_weights(model, 1)
    exported = export_model(model.state_dict(), config, TOKENS)
    assert exported.family == "mBART"
    back = import_model(exported.tensors, exported.config)
    equal_depth = config.num_decoder_layers == config.num_layers
    assert back.config == TransformerConfig(
        **vars(config) | ({"num_decoder_layers": None} if equal_depth else {})
    )
    assert all(torch.equal(tensor, back.state_dict[name]) for name, tensor in model.state_dict().items())


def test_published_size_has_the_tensors_that_transformers_expects():
    config = PRESETS["mbart-25"]
    with torch.device("meta"):
        state = SequenceToSequence(config).state_dict()
    exported = export_model(state, config)
    assert exported.config["scale_embedding"] is True
    assert shapes(exported.tensors) == tensors_on_meta(exported.config)


@pytest.mark.parametrize("key", ["normalize_before", "add_final_layer_norm", "normalize_embedding"])
def test_norms_elsewhere_are_refused(key):
    config = TransformerConfig(
        network="encoder_decoder", norm="pre", vocab_size=61, num_layers=1, hidden_size=16, num_heads=4
    )
    with torch.device("meta"):
        exported = export_model(SequenceToSequence(config).state_dict(), config, TOKENS)
    with pytest.raises(ValueError, match=f"{key} = False"):
        import_model(exported.tensors, exported.config | {key: False})
