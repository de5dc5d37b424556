"""Heads of fine-tuning of encoder-decoders and decoders, and heads that a file has beside the one that is read."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from torch import nn

from models.classifiers import TokenClassifier
from models.config import TransformerConfig
from models.hf.families import export_model, import_model
from models.hf.networks import carrier_of, ended_by, num_labels_of
from models.stacks import shifted_right
from tests.models.hf_oracle import (
    TOKENS,
    built,
    imported_from,
    opened_by_transformers,
    padding,
    random_network,
    shake,
    some_tokens,
)

T5: dict[str, Any] = {
    "norm": "pre",
    "norm_kind": "rms",
    "biases": False,
    "embedding_norm": False,
    "positions": "relative_bias",
    "scale_attention": False,
    "initializer": "fan_in",
}
SIZES: dict[str, Any] = {
    "vocab_size": 61,
    "num_layers": 2,
    "hidden_size": 16,
    "num_heads": 4,
    "intermediate_size": 40,
    "max_positions": 24,
}
BOTH = {
    "BART": {},
    "mBART": {"norm": "pre"},
    "T5": T5,
    "T5 v1.1": {**T5, "gated": True, "tie_embeddings": False},
}
START = {"BART": None, "mBART": None, "T5": TOKENS.pad, "T5 v1.1": TOKENS.pad}
"""What decoders start with."""
LENGTHS = [14, 9, 2]


def text() -> tuple[torch.Tensor, torch.Tensor]:
    mask = padding(LENGTHS, 14)
    ids = ended_by(some_tokens(3, 14, 1), mask, TOKENS.eos or 0)
    return ids.where(mask, TOKENS.pad), mask


@torch.no_grad()
def assert_reads_as(ours: nn.Module, theirs: Any, name: str) -> None:
    """Both make the decoder's input themselves, each in its own way."""
    ids, mask = text()
    expected = theirs.eval()(input_ids=ids, attention_mask=mask.long())
    start = START[name]
    found = ours(ids, mask, decoder_input_ids=None if start is None else shifted_right(ids, mask, start))
    if "start_logits" in expected:
        expected = torch.stack([expected.start_logits, expected.end_logits], -1)
        torch.testing.assert_close(found[mask], expected[mask], atol=1e-4, rtol=0)
    else:
        torch.testing.assert_close(found, expected.logits, atol=1e-4, rtol=0)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("labels", [1, 3])
@pytest.mark.parametrize("name", ["BART", "T5", "T5 v1.1"])
def test_classifier_reads_the_text_on_both_sides_as_in_transformers(name, labels, tied):
    config = TransformerConfig(network="encoder_decoder", **{**BOTH[name], **SIZES, "tie_embeddings": tied})
    ours = random_network(config, "sequence_classification", 1, labels)
    theirs, exported = opened_by_transformers(ours, config, None, TOKENS)
    assert exported.family == name.split()[0]
    assert theirs.config.num_labels == labels
    assert_reads_as(ours, theirs, name)
    back = import_model(exported.tensors, exported.config)
    assert (back.config, back.head) == (config, "sequence_classification")
    assert num_labels_of(back.state_dict, back.head) == labels


@pytest.mark.parametrize("name", BOTH)
def test_spans_are_found_as_in_transformers(name):
    config = TransformerConfig(network="encoder_decoder", **{**BOTH[name], **SIZES})
    ours = random_network(config, "question_answering", 1)
    theirs, exported = opened_by_transformers(ours, config, None, TOKENS)
    if name != "mBART":  # Its decoder starts with the tag of the language, wherever that is.
        assert_reads_as(ours, theirs, name)
    back = import_model(exported.tensors, exported.config)
    assert (back.config, back.head) == (config, "question_answering")


@pytest.mark.parametrize("head", ["SequenceClassification", "QuestionAnswering"])
@pytest.mark.parametrize("family", ["Bart", "T5"])
def test_imported_network_computes_what_transformers_computes(family, head):
    sizes = {
        "Bart": {
            "d_model": 16,
            "max_position_embeddings": 24,
            **dict.fromkeys(("encoder_layers", "decoder_layers"), 2),
            **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
            **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 20),
        },
        "T5": {"d_model": 16, "d_kv": 4, "d_ff": 30, "num_layers": 2, "num_heads": 4},
    }
    start = TOKENS.eos if family == "Bart" else TOKENS.pad
    config = getattr(transformers, f"{family}Config")(
        vocab_size=61, **sizes[family], **TOKENS.keys, decoder_start_token_id=start
    )
    theirs = getattr(transformers, f"{family}For{head}")(config)
    shake(theirs, 1)
    assert_reads_as(built(imported_from(theirs)), theirs, family.replace("Bart", "BART"))


DECODERS: dict[str, dict[str, Any]] = {
    "GPT-2": {"norm": "pre", "embedding_norm": False, "initializer": "scaled_residual"},
    "LLaMA": {
        "norm": "pre",
        "norm_kind": "rms",
        "biases": False,
        "embedding_norm": False,
        "positions": "rotary",
        "gated": True,
        "dropout": 0.0,
        "num_key_value_heads": 2,
    },
}


@torch.no_grad()
@pytest.mark.parametrize("family", DECODERS)
def test_decoder_tags_tokens_as_in_transformers(family):
    config = TransformerConfig(network="decoder", **DECODERS[family], **SIZES)
    ours = random_network(config, "token_classification", 1, 5)
    theirs, exported = opened_by_transformers(ours, config, None, TOKENS)
    assert exported.family == family
    ids = some_tokens(2, 9, 1)
    torch.testing.assert_close(ours(ids), theirs(input_ids=ids).logits, atol=1e-4, rtol=0)
    back = import_model(exported.tensors, exported.config)
    assert (back.head, len(back.state_dict["scores.weight"])) == ("token_classification", 5)


FOREIGN = {
    "cls.seq_relationship.weight": (2, 16),
    "cls.seq_relationship.bias": (2,),
    "bert.pooler.dense.weight": (16, 16),
    "bert.pooler.dense.bias": (16,),
    "classifier.weight": (7, 16),
}


def test_heads_that_are_not_read_are_named(small_config):
    config = small_config(num_segments=2)
    ours = random_network(config, "masked_lm", 1)
    exported = export_model(ours.state_dict(), config, TOKENS, family="BERT")
    foreign = {name: torch.zeros(shape) for name, shape in FOREIGN.items()}
    buffer = {"bert.embeddings.position_ids": torch.arange(24)[None]}
    imported = import_model(exported.tensors | foreign | buffer, exported.config)
    assert imported.left_out == tuple(sorted(foreign))
    assert import_model(exported.tensors, exported.config).left_out == ()
    with pytest.raises(ValueError, match=r"unexpected bert\.encoder\.layer\.9"):
        import_model(
            exported.tensors | {"bert.encoder.layer.9.output.dense.bias": torch.zeros(16)}, exported.config
        )


def test_pooler_of_a_bare_network_is_named_as_it_is_there():
    config = transformers.BertConfig(
        vocab_size=31, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8
    )
    assert imported_from(transformers.BertModel(config)).left_out == (
        "pooler.dense.bias",
        "pooler.dense.weight",
    )


def test_labels_of_tokens_keep_their_names(small_config):
    state = TokenClassifier(small_config(), 2).state_dict()
    exported = export_model(state, small_config(), labels=["O", "B-PER"])
    assert exported.head == "token_classification"
    assert exported.config["id2label"] == {"0": "O", "1": "B-PER"}
    assert carrier_of(small_config(), exported.head).auto_class == "AutoModelForTokenClassification"
