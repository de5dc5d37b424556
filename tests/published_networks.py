"""The sizes that the papers published, by name; `configs/models/` offers those that people train."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from models.config import TransformerConfig

_GPT = TransformerConfig(
    network="decoder",
    norm="pre",
    embedding_norm=False,
    activation="gelu_tanh",
    initializer="scaled_residual",
    position_std=0.01,
    max_positions=1024,
    vocab_size=50257,
)
_BART = TransformerConfig(network="encoder_decoder", num_layers=6, max_positions=1024, vocab_size=50265)
_T5 = TransformerConfig(
    network="encoder_decoder",
    norm="pre",
    norm_kind="rms",
    norm_eps=1e-6,
    biases=False,
    embedding_norm=False,
    positions="relative_bias",
    activation="relu",
    activation_dropout=0.1,
    output_dropout=0.1,
    scale_attention=False,
    scale_logits=True,
    initializer="fan_in",
    vocab_size=32128,
)
_LLAMA = TransformerConfig(
    network="decoder",
    norm="pre",
    norm_kind="rms",
    biases=False,
    embedding_norm=False,
    positions="rotary",
    activation="silu",
    gated=True,
    dropout=0.0,
    attention_dropout=0.0,
    tie_embeddings=False,
    max_positions=2048,
    vocab_size=32000,
)


def _sized(base: TransformerConfig, layers: int, hidden: int, heads: int, inner: int | None = None, **other):
    sizes = {"num_layers": layers, "hidden_size": hidden, "num_heads": heads}
    return replace(base, **sizes, intermediate_size=inner or 4 * hidden, **other)


_BERT = TransformerConfig(vocab_size=30522, num_segments=2, norm_eps=1e-12)
_ROBERTA = TransformerConfig(vocab_size=50265)
_ELECTRA = replace(_BERT, classification_head="gelu")
_DISTILBERT = replace(_BERT, num_segments=0, classification_head="relu")
_SPANBERT = replace(_BERT, vocab_size=28996)
_T5_V1_1 = replace(_T5, gated=True, activation="gelu_tanh", tie_embeddings=False, scale_logits=False)

PRESETS: Mapping[str, TransformerConfig] = {
    # Devlin et al. 2019, section 3; the miniatures of Turc et al. 2019, table 1.
    "bert-tiny": _sized(_BERT, 2, 128, 2),
    "bert-mini": _sized(_BERT, 4, 256, 4),
    "bert-small": _sized(_BERT, 4, 512, 8),
    "bert-medium": _sized(_BERT, 8, 512, 8),
    "bert-base": _sized(_BERT, 12, 768, 12),
    "bert-large": _sized(_BERT, 24, 1024, 16),
    # Liu et al. 2019, appendix B, table 9.
    "roberta-base": _sized(_ROBERTA, 12, 768, 12),
    "roberta-large": _sized(_ROBERTA, 24, 1024, 16),
    # Sanh et al. 2019, section 2: half of the layers of BERT base.
    "distilbert-base": _sized(_DISTILBERT, 6, 768, 12),
    # Joshi et al. 2020, section 4.1: BERT's networks, cased vocabulary, one segment in training.
    "spanbert-base": _sized(_SPANBERT, 12, 768, 12),
    "spanbert-large": _sized(_SPANBERT, 24, 1024, 16),
    # Clark et al. 2020, appendix A, table 6: the discriminators.
    "electra-small": _sized(_ELECTRA, 12, 256, 4, 1024, embedding_size=128),
    "electra-base": _sized(_ELECTRA, 12, 768, 12),
    "electra-large": _sized(_ELECTRA, 24, 1024, 16),
    # Lewis et al. 2020, section 2.1.
    "bart-base": _sized(_BART, 6, 768, 12),
    "bart-large": _sized(_BART, 12, 1024, 16),
    # Liu et al. 2020, section 2.2: a last LayerNorm on both stacks, which pre-norm has.
    "mbart-25": _sized(_BART, 12, 1024, 16, norm="pre", scale_embeddings=True, vocab_size=250027),
    # Raffel et al. 2020, section 3.7; v1.1 as released.
    "t5-small": _sized(_T5, 6, 512, 8, 2048),
    "t5-base": _sized(_T5, 12, 768, 12, 3072),
    "t5-large": _sized(_T5, 24, 1024, 16, 4096),
    "t5-v1.1-small": _sized(_T5_V1_1, 8, 512, 6, 1024, attention_head_size=64),
    "t5-v1.1-base": _sized(_T5_V1_1, 12, 768, 12, 2048),
    "t5-v1.1-large": _sized(_T5_V1_1, 24, 1024, 16, 2816),
    # Radford et al. 2018, section 4.1: post-norm, 40,000 merges.
    "gpt": replace(
        _sized(_GPT, 12, 768, 12),
        norm="post",
        max_positions=512,
        vocab_size=40478,
        initializer="normal",
        position_std=None,
    ),
    # Radford et al. 2019, table 2.
    "gpt2": _sized(_GPT, 12, 768, 12),
    "gpt2-medium": _sized(_GPT, 24, 1024, 16),
    # Brown et al. 2020, table 2.1; all layers attend densely here.
    "gpt3-350m": _sized(_GPT, 24, 1024, 16, max_positions=2048),
    "gpt3-760m": _sized(_GPT, 24, 1536, 16, max_positions=2048),
    "gpt3-1.3b": _sized(_GPT, 24, 2048, 16, max_positions=2048),
    # Touvron et al. 2023, table 2.
    "llama-7b": _sized(_LLAMA, 32, 4096, 32, 11008, norm_eps=1e-6),
    # Zhang et al. 2024, section 2.2: TinyLlama.
    "llama-1.1b": _sized(_LLAMA, 22, 2048, 32, 5632, num_key_value_heads=4),
    # Dubey et al. 2024, table 3; the first release, before its rotary frequencies were scaled for long contexts.
    "llama3-8b": _sized(
        _LLAMA,
        32,
        4096,
        32,
        14336,
        num_key_value_heads=8,
        rotary_base=500000.0,
        max_positions=8192,
        vocab_size=128256,
    ),
    # Warner et al. 2024, appendix A.
    "modernbert-base": TransformerConfig(
        vocab_size=50368,
        num_layers=22,
        hidden_size=768,
        num_heads=12,
        intermediate_size=1152,
        max_positions=8192,
        positions="rotary",
        rotary_base=160000.0,
        local_rotary_base=10000.0,
        local_window=128,
        global_every=3,
        norm="pre",
        first_norm=False,
        biases=False,
        gated=True,
        dropout=0.0,
        attention_dropout=0.0,
        initializer="scaled_residual",
        classification_head="gelu_norm",
    ),
}
"""Networks by name, with the vocabulary that was published."""
