"""GPT-2 to and from Hugging Face (Radford et al. 2019).

Its linear layers are `Conv1D`s, which keep weights as [columns, rows].
"""

from __future__ import annotations

from collections.abc import Mapping

from models.config import TransformerConfig
from models.hf.config_json import generation_keys
from models.hf.family import Family
from models.hf.heads import Head
from models.hf.names import Names, layers, module, parameter, vocabulary_names

LAYER: Mapping[str, tuple[str, ...]] = {
    "attention_norm": ("ln_1",),
    "attention.qkv": ("attn.c_attn",),
    "attention.output": ("attn.c_proj",),
    "feed_forward_norm": ("ln_2",),
    "feed_forward.up": ("mlp.c_fc",),
    "feed_forward.down": ("mlp.c_proj",),
}


def _body(config: TransformerConfig, prefix: str, pad: int) -> list[Names]:
    linear = [name for name in LAYER if not name.endswith("_norm")]
    return [
        *parameter("decoder.embeddings.tokens.weight", f"{prefix}wte.weight"),
        *parameter("decoder.embeddings.positions.weight", f"{prefix}wpe.weight"),
        *module("decoder.transformer.final_norm", f"{prefix}ln_f"),
        *layers(config.num_layers, "decoder.transformer.layers.", f"{prefix}h.", LAYER, transposed=linear),
    ]


def _heads(config: TransformerConfig, prefix: str) -> Mapping[Head, list[Names]]:
    return {
        "causal_lm": vocabulary_names(config),
        "sequence_classification": module("output", "score", bias=False),
        "token_classification": module("scores", "classifier"),
    }


FAMILY = Family(
    name="GPT-2",
    model_type="gpt2",
    # A bare GPT2Model is read as a language model: with tied embeddings, the head has no weights of its own.
    architectures={
        "GPT2LMHeadModel": "causal_lm",
        "GPT2Model": "causal_lm",
        "GPT2ForSequenceClassification": "sequence_classification",
        "GPT2ForTokenClassification": "token_classification",
    },
    base="transformer.",
    always=TransformerConfig(
        network="decoder", norm="pre", embedding_norm=False, initializer="scaled_residual", position_std=0.01
    ),
    # `transformers` keeps `activation_dropout`, but does not read it.
    keys={
        "vocab_size": ("vocab_size", 50257),
        "num_layers": ("n_layer", 12),
        "hidden_size": ("n_embd", 768),
        "num_heads": ("n_head", 12),
        "intermediate_size": ("n_inner", None),
        "max_positions": ("n_positions", 1024),
        "dropout": ("resid_pdrop", 0.1),
        "attention_dropout": ("attn_pdrop", 0.1),
        "activation_dropout": ("activation_dropout", 0.0),
        "scale_attention": ("scale_attn_weights", True),
        "norm_eps": ("layer_norm_epsilon", 1e-5),
        "initializer_std": ("initializer_range", 0.02),
        "tie_embeddings": ("tie_word_embeddings", True),
    },
    defaults={"activation_function": "gelu_new"},
    body=_body,
    heads=_heads,
    activation_key="activation_function",
    required={"scale_attn_by_inverse_layer_idx": False, "add_cross_attention": False},
    read=lambda values, head, tensors: {"intermediate_size": values["n_inner"] or 4 * values["n_embd"]},
    # A separate dropout of embeddings is not kept: they drop out like the residual stream.
    write=lambda config, head, token_ids: {"embd_pdrop": config.dropout, **token_ids.keys},
    copies={"lm_head.weight": "{}wte.weight"},
    # Causal masks.
    buffers=r"(^|\.)h\.\d+\.attn\.(masked_)?bias$",
    bare=(),
    generation_config=generation_keys,
)
