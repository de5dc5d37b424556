"""Initial weights as a pure function of the seed and the name of each parameter."""

from __future__ import annotations

import hashlib
from typing import cast

import torch
from torch import nn

from models.config import TransformerConfig


@torch.no_grad()
def init_weights(model: nn.Module, seed: int) -> None:
    """Fill all parameters in place: N(0, initializer_std), biases 0, LayerNorm weights 1.

    That is the initialisation of BERT and RoBERTa (Devlin et al. 2019, released code), not truncated.

    Every parameter draws from its own generator, seeded by (seed, parameter name), in host memory. So neither
    the order of construction nor the device nor the rest of the network changes a value, and no global random
    state is read or moved.

    Args:
        model: a network with a `config: TransformerConfig`, on any device but meta.
        seed: any integer.

    Raises:
        ValueError: a parameter is on the meta device and has no memory to fill.
    """
    std = cast(TransformerConfig, model.config).initializer_std
    for module_name, module in model.named_modules():
        for name, parameter in module.named_parameters(prefix=module_name, recurse=False):
            if parameter.is_meta:
                raise ValueError(f"{name} is on the meta device; call model.to_empty(device=...) first")
            if name.endswith("bias"):
                parameter.zero_()
            elif isinstance(module, nn.LayerNorm):
                parameter.fill_(1.0)
            else:
                drawn = torch.empty(parameter.shape, dtype=torch.float32, device="cpu")
                parameter.copy_(drawn.normal_(0.0, std, generator=_generator(seed, name)))


def _generator(seed: int, name: str) -> torch.Generator:
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return torch.Generator(device="cpu").manual_seed(int.from_bytes(digest[:8], "little"))
