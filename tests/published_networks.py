"""Networks of papers: those of `configs/models/` with the published vocabulary, and other sizes of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from models.config import TransformerConfig

CONFIGS = Path(__file__).parents[1] / "configs" / "models"
SHIPPED = {
    "bert-base": (30522, 110),
    "bert-large": (30522, 335),
    "spanbert-large": (28996, 333.6),
    "roberta-base": (50265, 125),
    "electra-small": (30522, 13.5),
    "electra-base": (30522, 108.9),
    "modernbert-base": (50368, 149),
    "gpt": (40478, 116.5),
    "gpt2": (50257, 124.4),
    "gpt3-350m": (50257, 356),
    "gpt3-1.3b": (50257, 1313),
    "llama-7b": (32000, 6738.4),
    "llama-1.1b": (32000, 1100.0),
    "llama3-8b": (128256, 8030.3),
    "bart-base": (50265, 139),
    "bart-large": (50265, 406),
    "mbart-25": (250027, 610.9),
    "t5-base": (32128, 222.9),
    "t5-v1.1-base": (32128, 247.6),
}
"""Tokens of the vocabulary and millions of parameters as published with the checkpoint, by name of the file."""
SIZED: dict[str, tuple[str, tuple[int, int, int, int], dict[str, Any], float]] = {
    # Turc et al. 2019, table 1.
    "bert-tiny": ("bert-base", (2, 128, 2, 512), {}, 4.4),
    "bert-mini": ("bert-base", (4, 256, 4, 1024), {}, 11.2),
    "bert-small": ("bert-base", (4, 512, 8, 2048), {}, 28.8),
    "bert-medium": ("bert-base", (8, 512, 8, 2048), {}, 41.4),
    # Sanh et al. 2019, section 2: half of the layers of BERT base.
    "distilbert-base": (
        "bert-base",
        (6, 768, 12, 3072),
        {"num_segments": 0, "classification_head": "relu"},
        67,
    ),
    "roberta-large": ("roberta-base", (24, 1024, 16, 4096), {}, 355),
    "spanbert-base": ("spanbert-large", (12, 768, 12, 3072), {}, 108.3),
    "electra-large": ("electra-base", (24, 1024, 16, 4096), {}, 334.1),
    "t5-small": ("t5-base", (6, 512, 8, 2048), {}, 60.5),
    "t5-large": ("t5-base", (24, 1024, 16, 4096), {}, 737.7),
    "t5-v1.1-small": ("t5-v1.1-base", (8, 512, 6, 1024), {"attention_head_size": 64}, 77),
    "t5-v1.1-large": ("t5-v1.1-base", (24, 1024, 16, 2816), {}, 783.2),
    "gpt2-medium": ("gpt2", (24, 1024, 16, 4096), {}, 354.8),
    "gpt3-760m": ("gpt3-350m", (24, 1536, 16, 6144), {}, 760),
}
"""Other sizes of these: layers, width, heads and inner width, further differences, and millions of parameters."""


def _shipped(name: str) -> TransformerConfig:
    plain: Any = OmegaConf.to_container(OmegaConf.load(CONFIGS / f"{name}.yaml").model)
    # Cutting changes what weights are before training only.
    return replace(TransformerConfig(**plain), vocab_size=SHIPPED[name][0], initializer_cut=None)


def _sized(name: str) -> TransformerConfig:
    other, sizes, differences, _ = SIZED[name]
    names = ("num_layers", "hidden_size", "num_heads", "intermediate_size")
    return replace(_shipped(other), **dict(zip(names, sizes, strict=True)), **differences)


PRESETS: Mapping[str, TransformerConfig] = {
    **{name: _shipped(name) for name in SHIPPED},
    **{name: _sized(name) for name in SIZED},
}
"""By name. `published_values.yaml` says where the values of the shipped ones were published."""
MILLIONS: Mapping[str, float] = {name: row[-1] for name, row in [*SHIPPED.items(), *SIZED.items()]}
"""Parameters, by name."""
