"""Low-rank updates of linear layers (Hu et al. 2022)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.config import TransformerConfig
from models.functional import dropout
from models.peft.adapters import layers_of
from models.peft.settings import LoraSettings, Target
from models.transformer import TransformerLayer

Rows = tuple[int, int]
"""First row of a projection in its fused matrix, and number of rows."""


class Update(nn.Module):
    """B A of one projection; B begins at zero, so that nothing is changed at first."""

    def __init__(self, inputs: int, outputs: int, rank: int) -> None:
        super().__init__()
        self.down = nn.Parameter(torch.zeros(rank, inputs))
        self.up = nn.Parameter(torch.zeros(outputs, rank))

    def forward(self, inputs: Tensor) -> Tensor:
        """[..., inputs] to [..., outputs]."""
        return F.linear(F.linear(inputs, self.down), self.up)

    def draw(self, name: str, shape: torch.Size, generator: torch.Generator) -> Tensor:
        """Initial weights: A as PyTorch's linear layers have theirs (released code), B zero."""
        if name == "up":
            return torch.zeros(shape)
        return torch.empty(shape).uniform_(-1.0, 1.0, generator=generator) * shape[1] ** -0.5


class LoraLinear(nn.Linear):
    """A linear layer with updates of some of its rows. Weight and bias keep their names."""

    def __init__(self, base: nn.Linear, rows: Mapping[Target, Rows], settings: LoraSettings) -> None:
        # Without memory: the parameters are those of `base`.
        super().__init__(base.in_features, base.out_features, bias=base.bias is not None, device="meta")
        self.weight, self.bias = base.weight, base.bias
        self.rows = dict(sorted(rows.items(), key=lambda item: item[1]))
        self.scale = settings.scale
        self.dropout = settings.dropout
        self.lora = nn.ModuleDict(
            {name: Update(base.in_features, count, settings.rank) for name, (_, count) in self.rows.items()}
        )
        self.train(base.training)

    def forward(self, input: Tensor) -> Tensor:
        """[..., in_features] to [..., out_features]."""
        output = F.linear(input, self.weight, self.bias)
        dropped = dropout(input, self.dropout, self.training)
        for (first, count), update in zip(self.rows.values(), self.lora.values(), strict=True):
            output[..., first : first + count].add_(update(dropped) * self.scale)
        return output

    @torch.no_grad()
    def merged(self) -> nn.Linear:
        """One linear layer that computes the same without dropout; W is changed in place."""
        for name, (first, count) in self.rows.items():
            update = self.lora[name]
            assert isinstance(update, Update)
            change = update.up.double() @ update.down.double() * self.scale
            rows = self.weight[first : first + count]
            rows.copy_(rows.double() + change)
        plain = nn.Linear(self.in_features, self.out_features, bias=self.bias is not None, device="meta")
        plain.weight, plain.bias = self.weight, self.bias
        return plain.train(self.training)


def check_lora(model: nn.Module, settings: LoraSettings) -> None:
    """Check that the layers have the projections in `targets`.

    Raises:
        ValueError: a layer lacks one.
    """
    for layer, config in layers_of(model):
        known = {name for rows in _projections(layer, config).values() for name in rows}
        if missing := set(settings.targets) - known:
            raise ValueError(f"targets: the network has no projection {', '.join(sorted(missing))}")


def add_lora(model: nn.Module, settings: LoraSettings) -> None:
    """Update the projections that the settings name, in every layer."""
    for layer, config in layers_of(model):
        for path, rows in _projections(layer, config).items():
            chosen: dict[Target, Rows] = {name: rows[name] for name in rows if name in settings.targets}
            if chosen:
                block, _, name = path.partition(".")
                parent = getattr(layer, block)
                setattr(parent, name, LoraLinear(getattr(parent, name), chosen, settings))


def _projections(layer: TransformerLayer, config: TransformerConfig) -> dict[str, dict[Target, Rows]]:
    """The linear layers of a layer by path, each with the projections in its rows."""
    query, key, inner = config.attention_size, config.key_value_size, config.intermediate_size
    output: dict[Target, Rows] = {"output": (0, config.hidden_size)}
    found: dict[str, dict[Target, Rows]] = {
        "attention.qkv": {"query": (0, query), "key": (query, key), "value": (query + key, key)},
        "attention.output": output,
        "feed_forward.up": {"gate": (0, inner), "up": (inner, inner)} if config.gated else {"up": (0, inner)},
        "feed_forward.down": {"down": (0, config.hidden_size)},
    }
    if layer.cross_attention is not None:
        found |= {
            "cross_attention.query": {"query": (0, query)},
            "cross_attention.key_value": {"key": (0, key), "value": (key, key)},
            "cross_attention.output": output,
        }
    return found
