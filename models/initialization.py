"""Initial weights as a pure function of the seed and the name of each parameter."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from models.attention import Attention, CrossAttention, SelfAttention
from models.config import Initializer, TransformerConfig
from models.transformer import FeedForward

Scale = Callable[[TransformerConfig, Any, str], float | Tensor]
"""(configuration, the module that owns a parameter, the path of its own module) to the standard deviation of the
parameter: a number, or [rows, 1]."""


@torch.no_grad()
def init_weights(model: nn.Module, seed: int) -> None:
    """Fill all parameters in place, as `config.initializer` says; biases 0, weights of norms 1.

    Every parameter draws from its own generator, seeded by (seed, parameter name), in host memory. So neither
    the order of construction nor the device nor the rest of the network changes a value, and no global random
    state is read or moved. A module that wants another distribution has a method
    `draw(name: str, shape: torch.Size, generator: torch.Generator) -> Tensor`. A network that starts from the
    weights of another, as a student from its teacher's, has a method `starting_weights() -> Mapping[str, Tensor]`, by
    parameter name.

    Args:
        model: a network with a `config`, on any device but meta.
        seed: any integer.

    Raises:
        ValueError: a parameter is on the meta device and has no memory to fill.
    """
    modules = dict(model.named_modules())
    given = getattr(model, "starting_weights", dict)()
    for path, module in modules.items():
        for name, parameter in module.named_parameters(recurse=False):
            full = f"{path}.{name}" if path else name
            if parameter.is_meta:
                raise ValueError(f"{full} is on the meta device; call model.to_empty(device=...) first")
            generator = named_generator(seed, full)
            if full in given:
                assert given[full].shape == parameter.shape, full
                parameter.copy_(given[full])
            elif draw := getattr(module, "draw", None):
                parameter.copy_(draw(name, parameter.shape, generator))
            elif name.startswith("bias"):
                parameter.zero_()
            elif isinstance(module, nn.LayerNorm | nn.RMSNorm):
                parameter.fill_(1.0)
            else:
                drawn = torch.empty(parameter.shape, dtype=torch.float32, device="cpu")
                cut = getattr(model.config, "initializer_cut", None)
                if cut is None:
                    drawn.normal_(0.0, 1.0, generator=generator)
                else:
                    nn.init.trunc_normal_(drawn, a=-cut, b=cut, generator=generator)
                parameter.copy_(drawn * _deviation(model, modules, path))


def _deviation(model: nn.Module, modules: Mapping[str, nn.Module], path: str) -> float | Tensor:
    """Standard deviation of the weights of the module at `path`."""
    config = model.config
    if not isinstance(config, TransformerConfig):
        return config.initializer_std  # pyright: ignore[reportReturnType, reportAttributeAccessIssue]
    parent, _, own = path.rpartition(".")
    if own == "positions" and config.position_std is not None:
        return config.position_std
    return SCALES[config.initializer](config, modules.get(parent, model), own)


def _scaled_residual(config: TransformerConfig, parent: Any, own: str) -> float:
    """GPT-2: projections into the residual stream shrink with the depth (Radford et al. 2019, section 2.3)."""
    into_residual = (isinstance(parent, Attention) and own == "output") or (
        isinstance(parent, FeedForward) and own == "down"
    )
    return config.initializer_std / (math.sqrt(2 * config.decoder_layers) if into_residual else 1.0)


def _fan_in(config: TransformerConfig, parent: Any, own: str) -> float | Tensor:
    """T5 (Raffel et al. 2020, released code): by the width of the input; queries also by the head size, because
    attention is not scaled; token embeddings 1."""
    hidden = config.hidden_size**-0.5
    query = (config.hidden_size * config.head_size) ** -0.5
    if isinstance(parent, SelfAttention) and own == "qkv":
        rows = torch.full((config.attention_size + 2 * config.key_value_size, 1), hidden)
        rows[: config.attention_size] = query
        return rows
    if isinstance(parent, CrossAttention) and own == "query":
        return query
    if isinstance(parent, Attention) and own == "output":
        return config.attention_size**-0.5
    if isinstance(parent, FeedForward) and own == "down":
        return config.intermediate_size**-0.5
    return 1.0 if own in ("tokens", "positions", "segments") else hidden


SCALES: Mapping[Initializer, Scale] = {
    # BERT (Devlin et al. 2019, released modeling.py, which cuts it off at two deviations).
    "normal": lambda config, parent, own: config.initializer_std,
    "scaled_residual": _scaled_residual,
    "fan_in": _fan_in,
}
"""The standard deviations that papers chose."""


def named_generator(seed: int, name: str) -> torch.Generator:
    """The generator of one parameter, in host memory."""
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return torch.Generator(device="cpu").manual_seed(int.from_bytes(digest[:8], "little"))
