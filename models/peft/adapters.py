"""Bottleneck adapters (Houlsby et al. 2019; Pfeiffer et al. 2021; He et al. 2022)."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from models.config import TransformerConfig
from models.functional import dropout
from models.peft.settings import AdapterSettings
from models.transformer import ACTIVATIONS, Transformer, TransformerLayer


class AdapterLinear(nn.Linear):
    """A linear layer of an adapter."""

    def __init__(self, in_features: int, out_features: int, *, zero: bool) -> None:
        super().__init__(in_features, out_features)
        self.zero = zero

    def draw(self, name: str, shape: torch.Size, generator: torch.Generator) -> Tensor:
        """Initial weights: uniform, as PyTorch's linear layers have theirs, or zero; biases zero."""
        if self.zero or name == "bias":
            return torch.zeros(shape)
        return torch.empty(shape).uniform_(-1.0, 1.0, generator=generator) * shape[1] ** -0.5


class Adapter(nn.Module):
    """The output of a block, and a change that a bottleneck computes from the output (serial) or from the block's input
    (parallel). The second layer begins at zero, so that nothing is changed at first."""

    def __init__(self, config: TransformerConfig, settings: AdapterSettings) -> None:
        super().__init__()
        self.down = AdapterLinear(config.hidden_size, settings.size, zero=False)
        self.up = AdapterLinear(settings.size, config.hidden_size, zero=True)
        self.activation = ACTIVATIONS[settings.activation]
        self.scale = settings.scale
        self.dropout = settings.dropout
        self.parallel = settings.placement == "parallel"

    def forward(self, inputs: Tensor, output: Tensor) -> Tensor:
        """[..., hidden] input and output of a block to [..., hidden]."""
        change = self.up(self.activation(self.down(inputs if self.parallel else output)))
        return output + dropout(change, self.dropout, self.training) * self.scale


def add_adapters(model: nn.Module, settings: AdapterSettings) -> None:
    """Give every layer its adapters."""
    for layer, config in layers_of(model):
        if settings.placement == "pfeiffer":
            layer.output_adapter = Adapter(config, settings)
            continue
        layer.feed_forward_adapter = Adapter(config, settings)
        if settings.placement == "houlsby":
            layer.attention_adapter = Adapter(config, settings)
            if layer.cross_attention is not None:
                layer.cross_attention_adapter = Adapter(config, settings)
            for norm in (layer.attention_norm, layer.cross_attention_norm, layer.feed_forward_norm):
                if norm is not None and settings.train_norms:
                    norm.requires_grad_(True)


def layers_of(model: nn.Module) -> Iterator[tuple[TransformerLayer, TransformerConfig]]:
    """The layers of all stacks of a network, from the first on, with their configuration."""
    for stack in model.modules():
        if isinstance(stack, Transformer):
            yield from ((layer, stack.config) for layer in stack.layers)  # pyright: ignore[reportReturnType]
