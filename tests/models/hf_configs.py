"""Configurations of every family of `transformers`, ours and theirs, drawn at random."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import transformers
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from models.config import TransformerConfig
from models.hf.families import FAMILIES
from models.hf.family import TokenIds
from models.hf.heads import build_on_meta
from tests.models.materials import NETWORKS, small_config

Fields = Mapping[str, Any]
"""Values by name, or strategies that draw them; a strategy may draw several fields, as a dictionary."""
ACTIVATIONS = st.sampled_from(["gelu", "gelu_tanh", "relu"])
THEIR_ACTIVATIONS = st.sampled_from(["gelu", "gelu_new", "gelu_pytorch_tanh", "relu"])
GPT2 = NETWORKS["decoder"] | {"initializer": "scaled_residual", "position_std": 0.01}
LLAMA: Fields = NETWORKS["decoder"] | {
    "norm_kind": "rms",
    "biases": False,
    "positions": "rotary",
    "gated": True,
    "dropout": 0.0,
}
T5: Fields = {
    "network": "encoder_decoder",
    "norm": "pre",
    "norm_kind": "rms",
    "biases": False,
    "embedding_norm": False,
    "positions": "relative_bias",
    "scale_attention": False,
    "initializer": "fan_in",
}
SIZES: Fields = {
    "vocab_size": st.integers(5, 70),
    "num_layers": st.integers(1, 3),
    "num_heads": st.integers(1, 4),
    "head_width": st.integers(1, 8),
    "intermediate_size": st.integers(1, 50),
    "activation": ACTIVATIONS,
    "tie_embeddings": st.booleans(),
}
"""`head_width` times `num_heads` is the width of the network."""
ENCODER: Fields = SIZES | {
    "max_positions": st.integers(2, 20),
    "norm_eps": st.sampled_from([1e-12, 1e-5]),
    "dropout": st.sampled_from([0.0, 0.1]),
}
ROBERTA: Fields = ENCODER | {"num_segments": st.sampled_from([0, 2, 3])}
MODERNBERT: Fields = {
    "positions": "rotary",
    "norm": "pre",
    "first_norm": False,
    "gated": True,
    "classification_head": "gelu_norm",
}
LOCAL = {
    "local_window": st.sampled_from([1, 2, 5, 8, 16]),
    "local_rotary_base": st.sampled_from([100.0, 10000.0]),
    "global_every": st.integers(2, 4),
}
DECODER: Fields = SIZES | {"vocab_size": 61, "max_positions": 24}
ENCODER_DECODER: Fields = DECODER | {
    "network": "encoder_decoder",
    "num_layers": st.sampled_from(
        [
            {"num_layers": layers} | others
            for layers in (1, 2)
            for others in ({}, {"num_decoder_layers": 3 - layers})
        ]
    ),
    "head_width": st.sampled_from([4, 7, 8]),
    "attention_dropout": st.sampled_from([0.0, 0.2]),
}
BART: Fields = ENCODER_DECODER | {
    "scale_embeddings": st.booleans(),
    "activation_dropout": st.sampled_from([0.0, 0.2]),
}
OTHER_BART: Fields = {
    "activation_function": THEIR_ACTIVATIONS,
    "encoder_layerdrop": st.sampled_from([0.0, 0.1]),
    # Untied, its two stacks have embeddings of their own.
    "tie_word_embeddings": True,
}
T5_ACTIVATIONS = ["relu", "gelu", "gelu_new", "gated-gelu", "gated-relu", "gated-gelu_new"]
SWITCHES = ("attention_bias", "mlp_bias", "norm_bias", "classifier_bias", "decoder_bias")


def drawn(draw: Any, fields: Fields) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in fields.items():
        value = draw(value) if isinstance(value, SearchStrategy) else value
        found |= value if isinstance(value, dict) else {name: value}
    return found


class Case(NamedTuple):
    """A family as the tests of parity take it."""

    ours: Fields
    """Fields of `TransformerConfig`."""
    others: Fields
    """Keys of config.json that an export does not write, or writes otherwise; None leaves a key out."""
    counts_columns: bool = False
    """Whether their positions are columns unless given, so that padding on the left shifts them."""
    predicts_by_activation: bool = False
    """Whether the head that predicts tokens has the activation of the layers."""

    def draw_ours(self, draw: Any) -> TransformerConfig:
        """A configuration of ours."""
        fields = drawn(draw, self.ours)
        fields["hidden_size"] = fields["num_heads"] * fields.pop("head_width")
        if self.predicts_by_activation:
            fields["prediction_activation"] = fields["activation"]
        return TransformerConfig(**fields)

    def draw_theirs(self, draw: Any, architecture: str) -> Any:
        """A configuration of a class of `transformers`: what an export would write, and what it never does."""
        kind = getattr(transformers, architecture).config_class
        family = next(family for family in FAMILIES if architecture in family.architectures)
        head = family.architectures[architecture]
        # Their class of answers inside a text takes any number of labels, and can use two.
        config, labels = self.draw_ours(draw), 2 if head == "question_answering" else draw(st.integers(1, 4))
        pad = draw(st.integers(0, config.require_vocab_size() - 1)) if config.network == "encoder" else 0
        state = build_on_meta(config, head, labels).state_dict()
        written = family.to_hf(state, config, head, TokenIds(pad, 0, 1))[1] | {"num_labels": labels}
        others = drawn(draw, self.others)
        kept = {key: value for key, value in written.items() if key not in others}
        given = {key: value for key, value in others.items() if key == "n_inner" or value is not None}
        return kind.from_dict(kept | given)


CASES: Mapping[str, Case] = {
    "BERT": Case(
        ENCODER | {"num_segments": st.integers(1, 3)},
        {"hidden_act": THEIR_ACTIVATIONS},
        counts_columns=True,
        predicts_by_activation=True,
    ),
    "DistilBERT": Case(
        ENCODER
        | {
            "activation": st.sampled_from(["gelu", "relu"]),
            "norm_eps": 1e-12,
            "classification_head": "relu",
            "dropout": 0.1,
        },
        {"sinusoidal_pos_embds": st.booleans()},
        counts_columns=True,
        predicts_by_activation=True,
    ),
    "RoBERTa": Case(ROBERTA, {"hidden_act": THEIR_ACTIVATIONS}),
    "RoBERTa-PreLayerNorm": Case(ROBERTA | {"norm": "pre"}, {"hidden_act": THEIR_ACTIVATIONS}),
    "ELECTRA": Case(
        ENCODER
        | {
            "head_width": st.integers(2, 8),
            "embedding_size": st.sampled_from([None, 1, 40]),
            "num_segments": st.integers(1, 3),
            "classification_head": "gelu",
        },
        {"hidden_act": THEIR_ACTIVATIONS},
        counts_columns=True,
    ),
    "ModernBERT": Case(
        ENCODER
        | MODERNBERT
        | {
            "num_layers": st.integers(2, 5),
            "head_width": st.sampled_from([2, 4, 6, 10]),
            # More than every local window that is drawn.
            "max_positions": 40,
            "rotary_base": st.sampled_from([10000.0, 160000.0]),
            "local": st.just({}) | st.fixed_dictionaries(LOCAL),
            "biases": st.booleans(),
            "attention_dropout": 0.0,
            "activation_dropout": st.sampled_from([0.0, 0.1]),
            "initializer": "scaled_residual",
        },
        dict.fromkeys(SWITCHES, st.booleans())
        | {"hidden_activation": st.sampled_from(["gelu", "gelu_new", "relu"])},
    ),
    "GPT-2": Case(
        DECODER
        | GPT2
        | {
            "head_width": st.sampled_from([4, 8, 14]),
            "scale_attention": st.booleans(),
            "norm_eps": st.sampled_from([1e-5, 1e-12, 0.1]),
        },
        {
            "n_inner": st.none() | st.integers(1, 50),
            "activation_function": THEIR_ACTIVATIONS | st.sampled_from(["gelu_python", "gelu_fast"]),
            "reorder_and_upcast_attn": st.booleans(),
            "embd_pdrop": st.sampled_from([0.0, 0.2]),
        },
        counts_columns=True,
    ),
    "LLaMA": Case(
        DECODER
        | LLAMA
        | {
            "num_heads": st.sampled_from(
                [
                    {"num_heads": heads, "num_key_value_heads": shared}
                    for heads, shared in ((4, None), (4, 2), (4, 1), (6, 3), (3, 1))
                ]
            ),
            "head_width": 4,
            "attention_head_size": st.sampled_from([None, 6]),
            "activation": st.sampled_from(["silu", "gelu"]),
            "rotary_base": st.sampled_from([10000.0, 500000.0, 7.0]),
            "norm_eps": st.sampled_from([1e-5, 1e-6, 0.1]),
        },
        {"hidden_act": st.sampled_from(["silu", "gelu_pytorch_tanh"])},
        counts_columns=True,
    ),
    "BART": Case(BART, OTHER_BART),
    "mBART": Case(BART | {"norm": "pre"}, OTHER_BART),
    "T5": Case(
        ENCODER_DECODER
        | T5
        | {
            "max_positions": st.sampled_from([24, 512]),
            "attention_head_size": st.sampled_from([None, 3, 16]),
            "relative_buckets": st.sampled_from([4, 8, 32]),
            "relative_max_distance": st.sampled_from([17, 128]),
            "gated": st.booleans(),
            "scale_logits": st.booleans(),
            "norm_eps": st.sampled_from([1e-6, 1e-3]),
            "dropout": st.sampled_from([0.0, 0.1]),
        },
        {
            "feed_forward_proj": st.sampled_from([*T5_ACTIVATIONS, "gated-gelu_python"]),
            "num_decoder_layers": st.sampled_from([None, 1, 3]),
            # What the versions of T5 do by it, where nothing else is said.
            "tie_word_embeddings": st.booleans(),
            "scale_decoder_outputs": None,
        },
    ),
}
"""By the name of the family."""

SMALL: Mapping[str, Mapping[str, Any]] = {
    "BERT": {"num_segments": 2},
    "DistilBERT": {"norm_eps": 1e-12, "classification_head": "relu"},
    "RoBERTa": {},
    "ELECTRA": {"num_segments": 2, "classification_head": "gelu"},
    "ModernBERT": MODERNBERT | {"biases": False},
    "GPT-2": GPT2,
    "LLaMA": LLAMA | {"num_key_value_heads": 2, "activation": "silu", "attention_dropout": 0.0},
    "BART": {"network": "encoder_decoder"},
    "mBART": {"network": "encoder_decoder", "norm": "pre"},
    "T5": T5 | {"activation": "relu"},
}


def small(family: str, **overrides: Any) -> TransformerConfig:
    """A small network of a family."""
    return small_config(**SMALL[family] | overrides)
