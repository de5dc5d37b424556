"""The same random weights in our networks and in those of transformers, for tests and benchmarks of generation."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import transformers
from torch import nn

from models.causal_language_model import CausalLanguageModel
from models.config import TransformerConfig
from models.hf.families import import_model
from models.hf.networks import carrier_of

PAD, EOS, START = 1, 2, 3


@dataclass(frozen=True)
class Size:
    """Of a network."""

    vocab_size: int = 37
    max_positions: int = 40
    hidden: int = 16
    heads: int = 4
    inner: int = 32
    layers: int = 2


SMALL = Size()
VOCAB_SIZE, MAX_POSITIONS = SMALL.vocab_size, SMALL.max_positions
COMMON = TransformerConfig(
    vocab_size=VOCAB_SIZE,
    max_positions=MAX_POSITIONS,
    num_layers=SMALL.layers,
    hidden_size=SMALL.hidden,
    num_heads=SMALL.heads,
    intermediate_size=SMALL.inner,
)


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
def gpt2(seed: int, size: Size = SMALL) -> tuple[CausalLanguageModel, nn.Module]:
    """Ours and transformers'."""
    config = transformers.GPT2Config(
        vocab_size=size.vocab_size,
        n_positions=size.max_positions,
        n_embd=size.hidden,
        n_layer=size.layers,
        n_head=size.heads,
        n_inner=size.inner,
        bos_token_id=None,
        eos_token_id=None,
    )
    return _pair(transformers.GPT2LMHeadModel(config), seed)


@cache
def llama(seed: int, size: Size = SMALL) -> tuple[CausalLanguageModel, nn.Module]:
    """Ours and transformers', with half as many heads of keys as of queries."""
    config = transformers.LlamaConfig(
        vocab_size=size.vocab_size,
        max_position_embeddings=size.max_positions,
        hidden_size=size.hidden,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.heads // 2,
        intermediate_size=size.inner,
        bos_token_id=None,
        eos_token_id=None,
    )
    return _pair(transformers.LlamaForCausalLM(config), seed)


@cache
def bart(seed: int, size: Size = SMALL):
    """Ours and transformers'."""
    return _pair(transformers.BartForConditionalGeneration(transformers.BartConfig(**_bart(size))), seed)


@cache
def mbart(seed: int, size: Size = SMALL):
    """Ours and transformers'."""
    config = transformers.MBartConfig(**_bart(size), scale_embedding=True)
    return _pair(transformers.MBartForConditionalGeneration(config), seed)


@cache
def t5(seed: int, size: Size = SMALL):
    """Ours and transformers'."""
    config = transformers.T5Config(
        vocab_size=size.vocab_size,
        d_model=size.hidden,
        d_kv=size.hidden // size.heads,
        d_ff=size.inner,
        num_layers=size.layers,
        num_heads=size.heads,
        relative_attention_num_buckets=8,
        relative_attention_max_distance=16,
    )
    return _pair(transformers.T5ForConditionalGeneration(config), seed)


def _bart(size: Size) -> dict[str, Any]:
    stacks = {
        key.format(stack): value
        for stack in ("encoder", "decoder")
        for key, value in {
            "{}_layers": size.layers,
            "{}_attention_heads": size.heads,
            "{}_ffn_dim": size.inner,
        }.items()
    }
    return {
        "vocab_size": size.vocab_size,
        "max_position_embeddings": size.max_positions,
        "d_model": size.hidden,
        **stacks,
    }


def _pair(theirs: Any, seed: int) -> tuple[Any, nn.Module]:
    move(theirs, seed)
    published = theirs.config.to_dict() | {"architectures": [type(theirs).__name__]}
    imported = import_model(theirs.state_dict(), published)
    ours = carrier_of(imported.config, imported.head).build(imported.config, 1)
    ours.load_state_dict(imported.state_dict)
    # Without settings of generation of its own.
    theirs.generation_config = transformers.GenerationConfig()
    return ours.eval(), theirs.eval()
