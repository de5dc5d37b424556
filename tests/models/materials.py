"""Small networks whose every parameter matters: nothing is left at zero or one."""

from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from models.config import TransformerConfig
from models.elmo.config import ElmoConfig
from models.initialization import init_weights
from models.language_models import CausalLanguageModel, MaskedLanguageModel, SequenceToSequence

Model = TypeVar("Model", bound=nn.Module)
NETWORKS: dict[str, dict[str, Any]] = {
    "encoder": {"num_segments": 2},
    "decoder": {"network": "decoder", "norm": "pre", "embedding_norm": False},
    "encoder_decoder": {"network": "encoder_decoder"},
}
T5 = {
    "positions": "relative_bias",
    "relative_buckets": 8,
    "relative_max_distance": 12,
    "norm": "pre",
    "norm_kind": "rms",
    "biases": False,
    "embedding_norm": False,
    "scale_attention": False,
    "scale_logits": True,
    "activation": "relu",
}
ROTARY = {"positions": "rotary", "norm": "pre"}
LOCAL = {"num_layers": 3, "local_window": 5, "global_every": 2}
KINDS: dict[str, dict[str, Any]] = {
    "learned, post-norm": {},
    "learned, pre-norm": {"norm": "pre", "scale_embeddings": True},
    "sinusoidal": {"positions": "sinusoidal"},
    "relative bias": T5,
    "rotary": ROTARY,
    "rotary, grouped queries": {**ROTARY, "gated": True, "activation": "silu", "num_key_value_heads": 2},
    "rotary, local windows": {**ROTARY, "local_rotary_base": 7.0, **LOCAL},
    "learned, local windows": LOCAL,
    "relative bias, local windows": T5 | LOCAL,
}
"""Kinds of positions, norms and attention."""
LANGUAGE_MODELS = {
    "encoder": MaskedLanguageModel,
    "decoder": CausalLanguageModel,
    "encoder_decoder": SequenceToSequence,
}


def small_config(**overrides: Any) -> TransformerConfig:
    """A network of two layers and 16 dimensions."""
    sizes = {"num_layers": 2, "hidden_size": 16, "num_heads": 4, "intermediate_size": 40, "max_positions": 24}
    return TransformerConfig(**{"vocab_size": 61} | sizes | overrides)


def tiny_elmo(**overrides: Any) -> ElmoConfig:
    """A small biLM."""
    fields = {
        "vocab_size": 30,
        "max_characters": 12,
        "character_size": 4,
        "filters": ((1, 5), (3, 8)),
        "projection_size": 6,
        "cell_size": 10,
    }
    return ElmoConfig(**fields | overrides)


@torch.no_grad()
def shake(model: nn.Module, seed: int, scale: float = 0.2) -> None:
    """Move every parameter, biases and norms included, off its initial value."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=scale)


def randomised(model: Model, seed: int = 1) -> Model:
    """The network with random weights, in evaluation mode."""
    init_weights(model, seed)
    shake(model, seed + 1)
    return model.eval()


def some_tokens(batch: int, length: int, seed: int) -> Tensor:
    """[batch, length] ids of a vocabulary of 61, none of them special."""
    return torch.randint(6, 61, (batch, length), generator=torch.Generator().manual_seed(seed))


def padding(lengths: list[int], length: int, side: str = "right") -> Tensor:
    """[len(lengths), length] bool: true at tokens."""
    place, sizes = torch.arange(length), torch.tensor(lengths)[:, None]
    return place < sizes if side == "right" else place >= length - sizes


def gradients(model: nn.Module, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """Gradients of the sum of all losses, by the name of the parameter."""
    model.zero_grad()
    losses, _ = model(**batch)
    torch.stack([*losses.values()]).sum().backward()
    return {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}
