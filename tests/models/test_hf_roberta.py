from __future__ import annotations

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from models.config import TransformerConfig
from models.hf import roberta
from models.hf.families import export_model, import_model
from models.hf.family import TokenIds
from models.masked_language_model import MaskedLanguageModel
from tests.models.hf_oracle import assert_export_agrees, assert_import_agrees

FAMILIES = {"post": roberta.FAMILY, "pre": roberta.PRE_LAYER_NORM}
ARCHITECTURES = {name: head for family in FAMILIES.values() for name, head in family.architectures.items()}


@st.composite
def our_configs(draw) -> TransformerConfig:
    num_heads = draw(st.integers(1, 4))
    return TransformerConfig(
        vocab_size=draw(st.integers(5, 70)),
        num_layers=draw(st.integers(1, 3)),
        num_heads=num_heads,
        hidden_size=num_heads * draw(st.integers(1, 8)),
        intermediate_size=draw(st.integers(1, 40)),
        max_positions=draw(st.integers(2, 20)),
        num_segments=draw(st.sampled_from([0, 2, 3])),
        norm=draw(st.sampled_from(["post", "pre"])),
        norm_eps=draw(st.sampled_from([1e-12, 1e-5])),
        activation=draw(st.sampled_from(["gelu", "gelu_tanh", "relu"])),
        tie_embeddings=draw(st.booleans()),
        dropout=draw(st.sampled_from([0.0, 0.1])),
    )


@st.composite
def their_fields(draw) -> dict:
    num_heads = draw(st.integers(1, 4))
    vocab_size = draw(st.integers(5, 70))
    pad = draw(st.integers(0, vocab_size - 1))
    return {
        "vocab_size": vocab_size,
        "num_hidden_layers": draw(st.integers(1, 3)),
        "num_attention_heads": num_heads,
        "hidden_size": num_heads * draw(st.integers(1, 8)),
        "intermediate_size": draw(st.integers(1, 40)),
        "max_position_embeddings": pad + draw(st.integers(3, 20)),
        "type_vocab_size": draw(st.integers(1, 3)),
        "hidden_act": draw(st.sampled_from(["gelu", "gelu_new", "gelu_pytorch_tanh", "relu"])),
        "layer_norm_eps": draw(st.sampled_from([1e-12, 1e-5])),
        "pad_token_id": pad,
        "tie_word_embeddings": draw(st.booleans()),
        "num_labels": 2,
    }


@settings(max_examples=25, deadline=None)
@given(st.data(), st.sampled_from(sorted(ARCHITECTURES)), their_fields())
def test_imported_network_computes_what_transformers_computes(data, name, fields):
    their_class = getattr(transformers, name)
    theirs = their_class(their_class.config_class(**fields))
    pad = fields["pad_token_id"]
    longest = fields["max_position_embeddings"] - pad - 1
    imported = assert_import_agrees(data, theirs, pad=pad, longest=longest)
    assert imported.head == ARCHITECTURES[name]


@settings(max_examples=25, deadline=None)
@given(st.data(), st.sampled_from(sorted(roberta.FAMILY.architectures.values())), our_configs())
def test_exported_network_computes_the_same_in_transformers_and_comes_back(data, head, config):
    family = FAMILIES[config.norm].name
    assert_export_agrees(data, config, head, family, longest=config.max_positions)


@pytest.fixture
def exported(small_config):
    model = MaskedLanguageModel(small_config())
    written = export_model(model.state_dict(), small_config())
    return dict(written.tensors), written.config


def test_leftovers_of_published_files_are_ignored(exported, small_config):
    state, config = exported
    state["roberta.pooler.dense.weight"] = torch.zeros(16, 16)
    state["roberta.pooler.dense.bias"] = torch.zeros(16)
    state["roberta.embeddings.position_ids"] = torch.arange(26).unsqueeze(0)
    state["lm_head.decoder.weight"] = state["roberta.embeddings.word_embeddings.weight"]
    state["lm_head.decoder.bias"] = state["lm_head.bias"]
    assert (
        import_model(state, config).state_dict.keys()
        == MaskedLanguageModel(small_config()).state_dict().keys()
    )


def test_tied_tensors_that_differ_are_refused(exported):
    state, config = exported
    state["lm_head.decoder.bias"] = state["lm_head.bias"] + 1
    message = r"ties lm_head\.decoder\.bias to lm_head\.bias, but their values differ"
    with pytest.raises(ValueError, match=message):
        import_model(state, config)


def test_half_precision_positions_are_added_to_the_segment_in_full(exported):
    state, config = exported
    half = {name: tensor.half() for name, tensor in state.items()}
    half["roberta.embeddings.token_type_embeddings.weight"].fill_(0.3)
    positions = import_model(half, config).state_dict["encoder.embeddings.positions.weight"]
    stored = half["roberta.embeddings.position_embeddings.weight"][2:].float()
    assert torch.equal(positions, stored + torch.tensor(0.3).half().float())


def test_export_keeps_its_precision(small_config):
    state = {
        name: tensor.bfloat16() for name, tensor in MaskedLanguageModel(small_config()).state_dict().items()
    }
    written = export_model(state, small_config(), TokenIds())
    assert written.config["dtype"] == "bfloat16"
    assert {tensor.dtype for tensor in written.tensors.values()} == {torch.bfloat16}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"is_decoder": True}, "is_decoder = True"),
        ({"add_cross_attention": True}, "add_cross_attention = True"),
        ({"position_embedding_type": "relative_key"}, "relative_key"),
        ({"hidden_act": "mish"}, "hidden_act = 'mish'.*gelu"),
        ({"pad_token_id": None}, "pad_token_id = None"),
        ({"num_attention_heads": 5}, "multiple of num_heads"),
    ],
)
def test_what_changes_the_computation_is_refused(exported, change, message):
    state, config = exported
    with pytest.raises(ValueError, match=message):
        import_model(state, config | change)
