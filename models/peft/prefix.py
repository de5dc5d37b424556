"""Prefix tuning: learned keys and values before those of the text (Li and Liang 2021)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.config import TransformerConfig
from models.peft.adapters import AdapterLinear, layers_of
from models.peft.settings import PrefixSettings
from models.stacks import Decoder
from models.transformer import Transformer
from models.visibility import Visible


class PrefixSource(nn.Module):
    """The part of the network that computes a prefix which all layers of a stack share (section 4.3)."""

    def __init__(self, config: TransformerConfig, length: int, bottleneck: int) -> None:
        super().__init__()
        self.tokens = nn.Parameter(torch.zeros(length, config.hidden_size))
        self.dense = AdapterLinear(config.hidden_size, bottleneck, zero=False)

    def forward(self) -> Tensor:
        """[length, bottleneck]."""
        return torch.tanh(self.dense(self.tokens))

    def draw(self, name: str, shape: torch.Size, generator: torch.Generator) -> Tensor:
        """Initial weights: N(0, 1), as PyTorch's embeddings have theirs (released code)."""
        return torch.empty(shape).normal_(0.0, 1.0, generator=generator)


class Prefix(nn.Module):
    """Keys and values of the prefix in one attention.

    Every token sees them. They change a network from the beginning, because tokens attend to them.
    """

    def __init__(
        self, config: TransformerConfig, settings: PrefixSettings, source: PrefixSource | None
    ) -> None:
        super().__init__()
        self.shape = (settings.length, 2, config.key_value_heads, config.head_size)
        self.std = config.initializer_std
        self.pair = nn.Parameter(torch.zeros(self.shape)) if source is None else None
        self.expand = (
            AdapterLinear(source.dense.out_features, 2 * config.key_value_size, zero=False)
            if source
            else None
        )
        # In a tuple, the source is hidden from `parameters`: it belongs to the stack.
        self._source = (source,)

    def keys_and_values(self) -> Tensor:
        """[2, key heads, length, head size]."""
        if self.expand is not None and self._source[0] is not None:
            pair = self.expand(self._source[0]()).view(self.shape)
        else:
            assert self.pair is not None
            pair = self.pair
        return pair.permute(1, 2, 0, 3)

    def forward(self, key: Tensor, value: Tensor, visible: Visible) -> tuple[Tensor, Tensor, Visible]:
        """Put the prefix before [batch, key heads, length, head size] keys and values.

        Raises:
            ValueError: attention is left to a kernel for packed pieces, which has no keys that all pieces see.
        """
        if visible.varlen is not None:
            raise ValueError(
                "prefix tuning adds keys that all packed pieces see, which the varlen kernel does not compute; take "
                "attention_backend: sdpa"
            )
        own_keys, own_values = (
            self.keys_and_values().to(key.dtype).unsqueeze(1).expand(-1, len(key), -1, -1, -1)
        )
        # All tokens see the prefix, whatever else is hidden from them.
        mask = visible.mask
        if visible.causal:
            size = key.shape[2]
            mask = torch.ones(size, size, dtype=torch.bool, device=key.device).tril()[None, None]
        if mask is not None:
            mask = mask.expand(*mask.shape[:-1], key.shape[2]) if mask.shape[-1] == 1 else mask
            shown = True if mask.dtype == torch.bool else 0.0
            visible = Visible(F.pad(mask, (self.shape[0], 0), value=shown))
        return torch.cat([own_keys, key], 2), torch.cat([own_values, value], 2), visible

    def draw(self, name: str, shape: torch.Size, generator: torch.Generator) -> Tensor:
        """Initial weights: as the network's own."""
        return torch.empty(shape).normal_(0.0, self.std, generator=generator)


def check_prefix(model: nn.Module, settings: PrefixSettings) -> None:
    """Check that decoders have positions left for a text.

    Raises:
        ValueError: the prefix takes all of them.
    """
    for decoder in _decoders_alone(model):
        if settings.length >= decoder.config.max_positions:
            raise ValueError(
                f"a prefix of {settings.length} leaves no positions for a text; the network has "
                f"{decoder.config.max_positions}"
            )


def add_prefix(model: nn.Module, settings: PrefixSettings) -> None:
    """Give every attention a prefix: of its own text, and of the memory that it reads (section 4.1)."""
    for stack in [module for module in model.modules() if isinstance(module, Transformer)]:
        layers = [layer for layer, _ in layers_of(stack)]
        reads_memory = any(layer.cross_attention is not None for layer in layers)
        prefix = memory_prefix = None
        if settings.bottleneck is not None:
            shape = stack.config, settings.length, settings.bottleneck
            stack.prefix = prefix = PrefixSource(*shape)
            stack.memory_prefix = memory_prefix = PrefixSource(*shape) if reads_memory else None
        for layer in layers:
            layer.attention.prefix = Prefix(stack.config, settings, prefix)
            if layer.cross_attention is not None:
                layer.cross_attention.prefix = Prefix(stack.config, settings, memory_prefix)
    for decoder in _decoders_alone(model):
        decoder.first_position = settings.length


def _decoders_alone(model: nn.Module) -> list[Decoder]:
    return [module for module in model.modules() if isinstance(module, Decoder) and not module.cross]
