"""The same random weights in our networks and in those of transformers, for tests and benchmarks of generation."""

from functools import cache
from typing import Any

import torch
import transformers
from torch import nn

from models.config import TransformerConfig
from models.hf.families import export_model
from models.hf.heads import Head, build_on_meta
from tests.models.hf_configs import small
from tests.models.hf_oracle import built, imported_from

PAD, EOS, START = 1, 2, 3


SIZES = {
    "vocab_size": 37,
    "max_positions": 40,
    "num_layers": 2,
    "hidden_size": 16,
    "num_heads": 4,
    "intermediate_size": 32,
}
PEERS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT-2", {}),
    "llama": ("LLaMA", {"tie_embeddings": False}),
    "bart": ("BART", {}),
    "mbart": ("mBART", {"scale_embeddings": True}),
    "t5": ("T5", {"relative_buckets": 8, "relative_max_distance": 16}),
}
"""Families, and how their networks differ from `hf_configs.small`."""
VOCAB_SIZE, MAX_POSITIONS = SIZES["vocab_size"], SIZES["max_positions"]
COMMON = TransformerConfig(**SIZES)


def prompts(rows: int = 3, length: int = 5, seed: int = 0) -> torch.Tensor:
    """[rows, length] ids of text."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(START + 1, VOCAB_SIZE, (rows, length), generator=generator)


def move(model: nn.Module, seed: int) -> None:
    """Random weights under which each next token depends on all before it: with the usual small ones, a network that
    shares its embeddings repeats one token for ever."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            of_tokens = any(part in name for part in ("wte", "shared", "embed_tokens", "lm_head"))
            matrix = 0.4 if of_tokens else 3.2 * parameter.shape[-1] ** -0.5
            scale = matrix if parameter.dim() > 1 else 0.1
            noise = scale * torch.randn(parameter.shape, generator=generator)
            # What transformers draws for matrices comes from the process's generator, which others used before.
            parameter.copy_(noise) if parameter.dim() > 1 else parameter.add_(noise)


@cache
def pair(peer: str, seed: int, **sizes: int) -> tuple[Any, Any]:
    """Our network and the one of transformers.

    Args:
        sizes: instead of `SIZES`.
    """
    family, differences = PEERS[peer]
    config = small(family, **SIZES | differences | sizes)
    head: Head = "causal_lm" if config.network == "decoder" else "seq2seq_lm"
    written = export_model(build_on_meta(config, head).state_dict(), config, head=head, family=family).config
    architecture = getattr(transformers, written["architectures"][0])
    no_tokens = {"bos_token_id": None, "eos_token_id": None}
    theirs = architecture(architecture.config_class.from_dict(written | no_tokens)).eval()
    move(theirs, seed)
    # Without settings of generation of its own.
    theirs.generation_config = transformers.GenerationConfig()
    return built(imported_from(theirs)), theirs
