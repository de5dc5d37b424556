"""The families of `transformers` in one table: small and random configurations, ours and theirs, old files, and keys
that are refused."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from torch import Tensor

from models.config import TransformerConfig
from models.hf.families import FAMILIES, Exported
from models.hf.family import TokenIds
from models.hf.heads import build_on_meta
from tests.models.materials import NETWORKS, small_config

Fields = Mapping[str, Any]
"""Values by name, or strategies that draw them; a strategy may draw several fields, as a dictionary."""
ABSENT = object()
"""The value of a key that is taken away."""
ACTIVATIONS = st.sampled_from(["gelu", "gelu_tanh", "relu"])
THEIR_ACTIVATIONS = st.sampled_from(["gelu", "gelu_new", "gelu_pytorch_tanh", "relu"])
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
DRAWN: Mapping[str, Fields] = {
    "encoder": SIZES
    | {
        "max_positions": st.integers(2, 20),
        "norm_eps": st.sampled_from([1e-12, 1e-5]),
        "dropout": st.sampled_from([0.0, 0.1]),
    },
    "decoder": SIZES | {"vocab_size": 61, "max_positions": 24},
    "encoder_decoder": SIZES
    | {
        "vocab_size": 61,
        "max_positions": 24,
        "num_layers": st.sampled_from(
            [
                {"num_layers": layers} | others
                for layers in (1, 2)
                for others in ({}, {"num_decoder_layers": 3 - layers})
            ]
        ),
        "head_width": st.sampled_from([4, 7, 8]),
        "attention_dropout": st.sampled_from([0.0, 0.2]),
    },
}
"""What all families of a kind of network draw."""
GPT2: Fields = NETWORKS["decoder"] | {"initializer": "scaled_residual", "position_std": 0.01}
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
LOCAL = {
    "local_window": st.sampled_from([1, 2, 5, 8, 16]),
    "local_rotary_base": st.sampled_from([100.0, 10000.0]),
    "global_every": st.integers(2, 4),
}
BART: Fields = {"scale_embeddings": st.booleans(), "activation_dropout": st.sampled_from([0.0, 0.2])}
OTHER_BART: Fields = {
    "activation_function": THEIR_ACTIVATIONS,
    "encoder_layerdrop": st.sampled_from([0.0, 0.1]),
    # Untied, its two stacks have embeddings of their own.
    "tie_word_embeddings": True,
}
T5_ACTIVATIONS = ["relu", "gelu", "gelu_new", "gated-gelu", "gated-relu", "gated-gelu_new"]
SWITCHES = ("attention_bias", "mlp_bias", "norm_bias", "classifier_bias", "decoder_bias")


@dataclass(frozen=True)
class Old:
    """What published files have that `save_pretrained` no longer writes."""

    renamed: Mapping[str, str] = field(default_factory=dict)
    """Parts of names of tensors, and what they were."""
    tensors: Mapping[str, Tensor | str | object] = field(default_factory=dict)
    """Further tensors, or the names that they are copies of."""
    keys: Fields = field(default_factory=dict)
    """Of config.json."""
    fields: Fields = field(default_factory=dict)
    """Of the network that is aged, beyond those of the small one."""
    implied: Fields = field(default_factory=dict)
    """Fields that the old keys stand for."""

    def age(self, exported: Exported) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The tensors and the config.json as they were."""
        copies = {name: exported.tensors.get(one, one) for name, one in self.tensors.items()}
        tensors = changed(exported.tensors, copies)
        for new, old in self.renamed.items():
            tensors = {name.replace(new, old): tensor for name, tensor in tensors.items()}
        return tensors, changed(exported.config, self.keys)


@dataclass(frozen=True)
class Case:
    """A family as the tests of parity take it."""

    small: Fields
    """Fields of `TransformerConfig` that it always has, or has in the smallest network."""
    drawn: Fields
    """Fields that differ, beyond those of its kind of network."""
    others: Fields
    """Keys of config.json that an export does not write, or writes otherwise; None leaves a key out."""
    counts_columns: bool = False
    """Whether their positions are columns unless given, so that padding on the left shifts them."""
    predicts_by_activation: bool = False
    """Whether the head that predicts tokens has the activation of the layers."""
    not_computed: Fields = field(default_factory=dict)
    """Keys of config.json whose values ask for a computation that our networks lack."""
    old: Old | None = None
    """Its old files."""

    def draw_ours(self, draw: Any) -> TransformerConfig:
        """A configuration of ours."""
        fields = _drawn(draw, DRAWN[self.small.get("network", "encoder")] | self.small | self.drawn)
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
        others = _drawn(draw, self.others)
        kept = {key: value for key, value in written.items() if key not in others}
        given = {key: value for key, value in others.items() if key == "n_inner" or value is not None}
        return kind.from_dict(kept | given)


CASES: Mapping[str, Case] = {
    "BERT": Case(
        {"num_segments": 2},
        {"num_segments": st.integers(1, 3)},
        {"hidden_act": THEIR_ACTIVATIONS},
        counts_columns=True,
        predicts_by_activation=True,
        not_computed={"vocab_size": ABSENT},
        old=Old(
            renamed={"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"},
            tensors={"bert.embeddings.position_ids": torch.arange(24)[None]},
            # Heads of pre-training are read for their prediction of tokens.
            keys={"architectures": ["BertForMaskedLM"]},
        ),
    ),
    "DistilBERT": Case(
        {"norm_eps": 1e-12, "classification_head": "relu"},
        {"activation": st.sampled_from(["gelu", "relu"]), "dropout": 0.1, "norm_eps": 1e-12},
        {"sinusoidal_pos_embds": st.booleans()},
        counts_columns=True,
        predicts_by_activation=True,
    ),
    "RoBERTa": Case(
        {},
        {"num_segments": st.sampled_from([0, 2, 3])},
        {"hidden_act": THEIR_ACTIVATIONS},
        not_computed={
            "is_decoder": True,
            "add_cross_attention": True,
            "position_embedding_type": "relative_key",
            "hidden_act": "mish",
            "pad_token_id": None,
            "quantization_config": {"bits": 8},
            "num_hidden_layers": 10**9,
        },
        old=Old(
            tensors={
                "roberta.pooler.dense.weight": torch.zeros(16, 16),
                "roberta.pooler.dense.bias": torch.zeros(16),
                "roberta.embeddings.position_ids": torch.arange(28)[None],
                "lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight",
                "lm_head.decoder.bias": "lm_head.bias",
            }
        ),
    ),
    "RoBERTa-PreLayerNorm": Case(
        {"norm": "pre"}, {"num_segments": st.sampled_from([0, 2, 3])}, {"hidden_act": THEIR_ACTIVATIONS}
    ),
    "ELECTRA": Case(
        {"num_segments": 2, "classification_head": "gelu"},
        {
            "head_width": st.integers(2, 8),
            "embedding_size": st.sampled_from([None, 1, 40]),
            "num_segments": st.integers(1, 3),
        },
        {"hidden_act": THEIR_ACTIVATIONS},
        counts_columns=True,
    ),
    "ModernBERT": Case(
        {
            "positions": "rotary",
            "norm": "pre",
            "first_norm": False,
            "gated": True,
            "classification_head": "gelu_norm",
            "biases": False,
        },
        {
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
        not_computed={"hidden_activation": "mish", "layer_types": ["sliding_attention"] * 2},
        old=Old(
            keys={
                **dict.fromkeys(("layer_types", "rope_parameters"), ABSENT),
                "global_attn_every_n_layers": 2,
                "global_rope_theta": 5e4,
                "local_rope_theta": 3e3,
            },
            fields={"local_window": 8, "num_layers": 4, "initializer": "scaled_residual"},
            implied={"global_every": 2, "rotary_base": 5e4, "local_rotary_base": 3e3},
        ),
    ),
    "GPT-2": Case(
        GPT2,
        {
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
        not_computed={
            "scale_attn_by_inverse_layer_idx": True,
            "add_cross_attention": True,
            "activation_function": "mish",
            "architectures": ["GPT2DoubleHeadsModel"],
        },
        old=Old(
            renamed={"transformer.": ""},
            tensors={f"h.{number}.attn.bias": torch.ones(24, 24).tril()[None, None] for number in range(2)}
            | {f"h.{number}.attn.masked_bias": torch.tensor(-1e4) for number in range(2)},
        ),
    ),
    "LLaMA": Case(
        NETWORKS["decoder"]
        | {"norm_kind": "rms", "biases": False, "positions": "rotary", "gated": True, "dropout": 0.0}
        | {"num_key_value_heads": 2, "activation": "silu", "attention_dropout": 0.0},
        {
            "num_key_value_heads": st.sampled_from(
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
            "attention_dropout": st.sampled_from([0.0, 0.1]),
        },
        {"hidden_act": st.sampled_from(["silu", "gelu_pytorch_tanh"])},
        counts_columns=True,
        not_computed={"attention_bias": True, "mlp_bias": True, "hidden_act": "mish"},
        # TinyLlama as it is on the hub.
        old=Old(
            tensors={
                f"model.layers.{number}.self_attn.rotary_emb.inv_freq": torch.ones(2) for number in (0, 1)
            },
            keys={
                **dict.fromkeys(("rope_parameters", "head_dim"), ABSENT),
                "rope_theta": 5e4,
                "rope_scaling": None,
                "pretraining_tp": 1,
                "use_cache": True,
            },
            implied={"rotary_base": 5e4},
        ),
    ),
    "BART": Case(
        {"network": "encoder_decoder"},
        BART,
        OTHER_BART,
        not_computed={
            "decoder_ffn_dim": 41,
            "decoder_attention_heads": 2,
            "normalize_before": True,
            "static_position_embeddings": True,
            "is_encoder_decoder": False,
            "activation_function": "mish",
            "architectures": ["BartForCausalLM"],
        },
        old=Old(
            tensors={
                "final_logits_bias": ABSENT,
                "model.encoder.embed_tokens.weight": "model.shared.weight",
                "model.decoder.embed_tokens.weight": "model.shared.weight",
                "lm_head.weight": "model.shared.weight",
                "model.encoder.version": torch.tensor([3.0]),
            },
            keys={
                "normalize_before": False,
                "add_final_layer_norm": False,
                "normalize_embedding": True,
                "add_bias_logits": False,
            },
        ),
    ),
    "mBART": Case(
        {"network": "encoder_decoder", "norm": "pre"},
        BART,
        OTHER_BART,
        not_computed=dict.fromkeys(
            ("normalize_before", "add_final_layer_norm", "normalize_embedding"), False
        ),
    ),
    "T5": Case(
        T5 | {"activation": "relu"},
        {
            "activation": ACTIVATIONS,
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
        not_computed={
            "feed_forward_proj": "gated-mish",
            "is_encoder_decoder": False,
            "architectures": ["T5EncoderModel"],
        },
        old=Old(
            tensors={
                **dict.fromkeys(
                    ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight"),
                    "shared.weight",
                ),
                "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight": torch.ones(32, 4),
            },
            keys={
                **dict.fromkeys(("attention_dropout", "activation_dropout", "output_dropout"), ABSENT),
                **dict.fromkeys(("scale_decoder_outputs", "relative_attention_max_distance"), ABSENT),
                "tie_word_embeddings": ABSENT,
                "architectures": ["T5WithLMHeadModel"],
            },
            implied={"activation_dropout": 0.1, "output_dropout": 0.1, "scale_logits": True},
        ),
    ),
}
"""By the name of the family."""
SMALL: Mapping[str, Fields] = {name: case.small for name, case in CASES.items()}


def _drawn(draw: Any, fields: Fields) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in fields.items():
        value = draw(value) if isinstance(value, SearchStrategy) else value
        found |= value if isinstance(value, dict) else {name: value}
    return found


def small(family: str, **overrides: Any) -> TransformerConfig:
    """A small network of a family."""
    return small_config(**SMALL[family] | overrides)


def changed(contents: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """With other values, some of them `ABSENT`."""
    return {key: value for key, value in (contents | change).items() if value is not ABSENT}
