"""Configurations of every family of `transformers`, ours and theirs, drawn at random."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import transformers
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from models.config import TransformerConfig
from models.hf.families import FAMILIES
from models.hf.family import TokenIds
from models.hf.heads import build_on_meta

GELU = ["gelu", "gelu_new", "gelu_pytorch_tanh", "relu"]
OUR_GELU = ["gelu", "gelu_tanh", "relu"]
DECODER: dict[str, Any] = {"network": "decoder", "norm": "pre", "embedding_norm": False}
GPT2 = DECODER | {"initializer": "scaled_residual", "position_std": 0.01}
LLAMA: dict[str, Any] = DECODER | {
    "norm_kind": "rms",
    "biases": False,
    "positions": "rotary",
    "gated": True,
    "dropout": 0.0,
}
T5: dict[str, Any] = {
    "network": "encoder_decoder",
    "norm": "pre",
    "norm_kind": "rms",
    "biases": False,
    "embedding_norm": False,
    "positions": "relative_bias",
    "scale_attention": False,
    "initializer": "fan_in",
}
HEADS = [(4, None), (4, 2), (4, 1), (6, 3), (3, 1)]
"""Heads of queries, and of keys and values."""
LONGEST = 40
"""Positions of ModernBERT: more than every local window that is drawn."""

Draw = Any


def of_our_encoders(draw: Draw) -> dict[str, Any]:
    heads = draw(st.integers(1, 4))
    return {
        "vocab_size": draw(st.integers(5, 70)),
        "num_layers": draw(st.integers(1, 3)),
        "num_heads": heads,
        "hidden_size": heads * draw(st.integers(1, 8)),
        "intermediate_size": draw(st.integers(1, 40)),
        "max_positions": draw(st.integers(2, 20)),
        "tie_embeddings": draw(st.booleans()),
        "norm_eps": draw(st.sampled_from([1e-12, 1e-5])),
        "activation": draw(st.sampled_from(OUR_GELU)),
        "dropout": draw(st.sampled_from([0.0, 0.1])),
    }


def our_bert(draw: Draw) -> dict[str, Any]:
    fields = of_our_encoders(draw)
    return fields | {
        "num_segments": draw(st.integers(1, 3)),
        "prediction_activation": fields["activation"],
    }


def our_distilbert(draw: Draw) -> dict[str, Any]:
    activation = draw(st.sampled_from(["gelu", "relu"]))
    same = {"activation": activation, "prediction_activation": activation}
    return of_our_encoders(draw) | same | {"norm_eps": 1e-12, "classification_head": "relu", "dropout": 0.1}


def our_roberta(draw: Draw) -> dict[str, Any]:
    return of_our_encoders(draw) | {"num_segments": draw(st.sampled_from([0, 2, 3]))}


def our_electra(draw: Draw) -> dict[str, Any]:
    fields, width = of_our_encoders(draw), draw(st.integers(1, 20))
    return fields | {
        "embedding_size": None if width == fields["hidden_size"] else width,
        "num_segments": draw(st.integers(1, 3)),
        "classification_head": "gelu",
    }


def our_modernbert(draw: Draw) -> dict[str, Any]:
    heads, layers = draw(st.integers(1, 3)), draw(st.integers(1, 5))
    window = draw(st.sampled_from([None, 1, 2, 5, 8, 16])) if layers > 1 else None
    return of_our_encoders(draw) | {
        "num_layers": layers,
        "num_heads": heads,
        "hidden_size": heads * 2 * draw(st.integers(1, 5)),
        "max_positions": LONGEST,
        "positions": "rotary",
        "rotary_base": draw(st.sampled_from([10000.0, 160000.0])),
        "local_rotary_base": draw(st.sampled_from([100.0, 10000.0])) if window else None,
        "local_window": window,
        "global_every": draw(st.integers(2, 4)) if window else 3,
        "norm": "pre",
        "first_norm": False,
        "biases": draw(st.booleans()),
        "gated": True,
        "attention_dropout": 0.0,
        "activation_dropout": draw(st.sampled_from([0.0, 0.1])),
        "initializer": "scaled_residual",
        "classification_head": "gelu_norm",
    }


def our_gpt2(draw: Draw) -> dict[str, Any]:
    heads = draw(st.integers(1, 4))
    return GPT2 | {
        "vocab_size": 61,
        "max_positions": 24,
        "num_layers": draw(st.integers(1, 3)),
        "num_heads": heads,
        "hidden_size": heads * draw(st.sampled_from([2, 4, 7])) * 2,
        "intermediate_size": draw(st.integers(1, 50)),
        "activation": draw(st.sampled_from(OUR_GELU)),
        "scale_attention": draw(st.booleans()),
        "tie_embeddings": draw(st.booleans()),
        "norm_eps": draw(st.sampled_from([1e-5, 1e-12, 0.1])),
    }


def our_llama(draw: Draw) -> dict[str, Any]:
    heads, key_value_heads = draw(st.sampled_from(HEADS))
    return LLAMA | {
        "vocab_size": 61,
        "max_positions": 24,
        "num_layers": draw(st.integers(1, 3)),
        "num_heads": heads,
        "num_key_value_heads": key_value_heads,
        "hidden_size": heads * 4,
        "attention_head_size": draw(st.sampled_from([None, 6])),
        "intermediate_size": draw(st.integers(1, 50)),
        "activation": draw(st.sampled_from(["silu", "gelu"])),
        "rotary_base": draw(st.sampled_from([10000.0, 500000.0, 7.0])),
        "tie_embeddings": draw(st.booleans()),
        "norm_eps": draw(st.sampled_from([1e-5, 1e-6, 0.1])),
    }


def of_our_encoder_decoders(draw: Draw) -> dict[str, Any]:
    heads, layers = draw(st.integers(1, 4)), draw(st.integers(1, 2))
    return {
        "network": "encoder_decoder",
        "vocab_size": 61,
        "max_positions": 24,
        "num_layers": layers,
        "num_decoder_layers": draw(st.sampled_from([None, 3 - layers])),
        "num_heads": heads,
        "hidden_size": heads * draw(st.sampled_from([4, 7, 8])),
        "intermediate_size": draw(st.integers(1, 50)),
        "activation": draw(st.sampled_from(OUR_GELU)),
        "tie_embeddings": draw(st.booleans()),
        "attention_dropout": draw(st.sampled_from([0.0, 0.2])),
    }


def our_bart(draw: Draw) -> dict[str, Any]:
    return of_our_encoder_decoders(draw) | {
        "scale_embeddings": draw(st.booleans()),
        "activation_dropout": draw(st.sampled_from([0.0, 0.2])),
    }


def our_t5(draw: Draw) -> dict[str, Any]:
    fields = of_our_encoder_decoders(draw)
    head_size = draw(st.none() | st.sampled_from([3, 16]))
    return fields | {
        **T5,
        "max_positions": draw(st.sampled_from([24, 512])),
        "attention_head_size": head_size,
        "relative_buckets": draw(st.sampled_from([4, 8, 32])),
        "relative_max_distance": draw(st.sampled_from([17, 128])),
        "gated": draw(st.booleans()),
        "scale_logits": draw(st.booleans()),
        "norm_eps": draw(st.sampled_from([1e-6, 1e-3])),
        "dropout": draw(st.sampled_from([0.0, 0.1])),
    }


def other_activation(key: str, *names: str) -> Draw:
    """Draws another name of an activation under its key in config.json."""
    return lambda draw: {key: draw(st.sampled_from(names or GELU))}


def other_modernbert(draw: Draw) -> dict[str, Any]:
    switches = ("attention_bias", "mlp_bias", "norm_bias", "classifier_bias", "decoder_bias")
    return {name: draw(st.booleans()) for name in switches} | {
        "hidden_activation": draw(st.sampled_from(["gelu", "gelu_new", "relu"]))
    }


def other_gpt2(draw: Draw) -> dict[str, Any]:
    return {
        "n_inner": draw(st.none() | st.integers(1, 50)),
        "activation_function": draw(st.sampled_from([*GELU, "gelu_python", "gelu_fast"])),
        "reorder_and_upcast_attn": draw(st.booleans()),
        "embd_pdrop": draw(st.sampled_from([0.0, 0.2])),
    }


def other_bart(draw: Draw) -> dict[str, Any]:
    return {
        "activation_function": draw(st.sampled_from(GELU)),
        "encoder_layerdrop": draw(st.sampled_from([0.0, 0.1])),
        # Untied, its two stacks have embeddings of their own.
        "tie_word_embeddings": True,
    }


def other_t5(draw: Draw) -> dict[str, Any]:
    kinds = ["relu", "gelu", "gelu_new", "gated-gelu", "gated-relu", "gated-gelu_new", "gated-gelu_python"]
    return {
        "feed_forward_proj": draw(st.sampled_from(kinds)),
        "num_decoder_layers": draw(st.sampled_from([None, 1, 3])),
        # What the versions of T5 do by it, where nothing else is said.
        "tie_word_embeddings": draw(st.booleans()),
        "scale_decoder_outputs": None,
    }


class Case(NamedTuple):
    """A family as the tests of parity take it."""

    our_fields: Any
    """Draws fields of `TransformerConfig`."""
    others: Any
    """Draws keys of config.json that an export does not write, or writes otherwise; None leaves a key out."""
    fixed: Mapping[str, Any] = {}
    """Fields of ours by which the family is told from another that is drawn alike."""
    counts_columns: bool = False
    """Whether their positions are columns unless given, so that padding on the left shifts them."""

    def ours(self) -> SearchStrategy[TransformerConfig]:
        """Configurations of ours."""
        return st.composite(lambda draw: TransformerConfig(**self.our_fields(draw) | self.fixed))()

    def theirs(self, architecture: str) -> SearchStrategy[Any]:
        """Configurations of a class of `transformers`: what an export would write, and what it never does."""
        kind = getattr(transformers, architecture).config_class
        family = next(family for family in FAMILIES if architecture in family.architectures)
        head = family.architectures[architecture]

        def make(draw: Draw) -> Any:
            # Their class of answers inside a text takes any number of labels, and can use two.
            config = draw(self.ours())
            labels = 2 if head == "question_answering" else draw(st.integers(1, 4))
            pad = draw(st.integers(0, config.require_vocab_size() - 1)) if config.network == "encoder" else 0
            state = build_on_meta(config, head, labels).state_dict()
            written = family.to_hf(state, config, head, TokenIds(pad, 0, 1))[1] | {"num_labels": labels}
            others = self.others(draw)
            kept = {key: value for key, value in written.items() if key not in others}
            given = {key: value for key, value in others.items() if key == "n_inner" or value is not None}
            return kind.from_dict(kept | given)

        return st.composite(make)()


CASES: Mapping[str, Case] = {
    "BERT": Case(our_bert, other_activation("hidden_act"), counts_columns=True),
    "DistilBERT": Case(
        our_distilbert,
        lambda draw: {"sinusoidal_pos_embds": draw(st.booleans())},
        counts_columns=True,
    ),
    "RoBERTa": Case(our_roberta, other_activation("hidden_act")),
    "RoBERTa-PreLayerNorm": Case(our_roberta, other_activation("hidden_act"), {"norm": "pre"}),
    "ELECTRA": Case(our_electra, other_activation("hidden_act"), counts_columns=True),
    "ModernBERT": Case(our_modernbert, other_modernbert),
    "GPT-2": Case(our_gpt2, other_gpt2, counts_columns=True),
    "LLaMA": Case(
        our_llama, other_activation("hidden_act", "silu", "gelu_pytorch_tanh"), counts_columns=True
    ),
    "BART": Case(our_bart, other_bart, {"norm": "post"}),
    "mBART": Case(our_bart, other_bart, {"norm": "pre"}),
    "T5": Case(our_t5, other_t5),
}
"""By the name of the family."""

SMALL: Mapping[str, Mapping[str, Any]] = {
    "BERT": {"num_segments": 2},
    "DistilBERT": {"norm_eps": 1e-12, "classification_head": "relu"},
    "RoBERTa": {},
    "ELECTRA": {"num_segments": 2, "classification_head": "gelu"},
    "ModernBERT": {
        "positions": "rotary",
        "norm": "pre",
        "first_norm": False,
        "biases": False,
        "gated": True,
        "classification_head": "gelu_norm",
    },
    "GPT-2": GPT2,
    "LLaMA": LLAMA | {"num_key_value_heads": 2, "activation": "silu", "attention_dropout": 0.0},
    "BART": {"network": "encoder_decoder"},
    "mBART": {"network": "encoder_decoder", "norm": "pre"},
    "T5": T5 | {"activation": "relu"},
}


def small(family: str, **overrides: Any) -> TransformerConfig:
    """One network of a family, of two layers and 16 dimensions."""
    sizes = {"num_layers": 2, "hidden_size": 16, "num_heads": 4, "intermediate_size": 40, "max_positions": 24}
    return TransformerConfig(**{"vocab_size": 61} | sizes | SMALL[family] | overrides)
