"""Networks of papers: those of `configs/models/` with the published vocabulary, and other sizes of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from models.config import TransformerConfig

CONFIGS = Path(__file__).parents[1] / "configs" / "models"
VOCABULARIES = {
    **dict.fromkeys(("bert-base", "bert-large", "electra-small", "electra-base"), 30522),
    **dict.fromkeys(("roberta-base", "bart-base", "bart-large"), 50265),
    **dict.fromkeys(("gpt2", "gpt3-350m", "gpt3-1.3b"), 50257),
    **dict.fromkeys(("llama-7b", "llama-1.1b"), 32000),
    **dict.fromkeys(("t5-base", "t5-v1.1-base"), 32128),
    "spanbert-large": 28996,
    "mbart-25": 250027,
    "gpt": 40478,
    "llama3-8b": 128256,
    "modernbert-base": 50368,
}
"""Number of tokens, by name of the file."""


def _shipped(name: str) -> TransformerConfig:
    plain: Any = OmegaConf.to_container(OmegaConf.load(CONFIGS / f"{name}.yaml").model)
    # Cutting changes what weights are before training only.
    return replace(TransformerConfig(**plain), vocab_size=VOCABULARIES[name], initializer_cut=None)


_SHIPPED = {name: _shipped(name) for name in VOCABULARIES}


def _sized(name: str, layers: int, hidden: int, heads: int, inner: int | None = None, **other: Any):
    sizes = {"num_layers": layers, "hidden_size": hidden, "num_heads": heads}
    return replace(_SHIPPED[name], **sizes, intermediate_size=inner or 4 * hidden, **other)


PRESETS: Mapping[str, TransformerConfig] = {
    **_SHIPPED,
    # Turc et al. 2019, table 1.
    "bert-tiny": _sized("bert-base", 2, 128, 2),
    "bert-mini": _sized("bert-base", 4, 256, 4),
    "bert-small": _sized("bert-base", 4, 512, 8),
    "bert-medium": _sized("bert-base", 8, 512, 8),
    # Sanh et al. 2019, section 2: half of the layers of BERT base.
    "distilbert-base": _sized("bert-base", 6, 768, 12, num_segments=0, classification_head="relu"),
    "roberta-large": _sized("roberta-base", 24, 1024, 16),
    "spanbert-base": _sized("spanbert-large", 12, 768, 12),
    "electra-large": _sized("electra-base", 24, 1024, 16),
    "t5-small": _sized("t5-base", 6, 512, 8, 2048),
    "t5-large": _sized("t5-base", 24, 1024, 16, 4096),
    "t5-v1.1-small": _sized("t5-v1.1-base", 8, 512, 6, 1024, attention_head_size=64),
    "t5-v1.1-large": _sized("t5-v1.1-base", 24, 1024, 16, 2816),
    "gpt2-medium": _sized("gpt2", 24, 1024, 16),
    "gpt3-760m": _sized("gpt3-350m", 24, 1536, 16),
}
"""By name. `published_values.yaml` says where the values of the shipped ones were published."""
