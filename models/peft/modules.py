"""What the methods add to a network: low-rank updates of linear layers (Hu et al. 2022), bottlenecks after or beside a
block (Houlsby et al. 2019; Pfeiffer et al. 2021; He et al. 2022), and learned keys and values before those of the text
(Li and Liang 2021)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.config import TransformerConfig
from models.functional import dropout
from models.peft.settings import AdapterSettings, LoraSettings, PrefixSettings, Target
from models.transformer import ACTIVATIONS
from models.visibility import Visible

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


def projections(config: TransformerConfig, *, cross: bool) -> dict[str, dict[Target, Rows]]:
    """The linear layers of a `TransformerLayer` by path, each with the projections in its rows.

    Args:
        cross: whether the layer reads a memory.
    """
    query, key, inner = config.attention_size, config.key_value_size, config.intermediate_size
    output: dict[Target, Rows] = {"output": (0, config.hidden_size)}
    found: dict[str, dict[Target, Rows]] = {
        "attention.qkv": {"query": (0, query), "key": (query, key), "value": (query + key, key)},
        "attention.output": output,
        "feed_forward.up": {"gate": (0, inner), "up": (inner, inner)} if config.gated else {"up": (0, inner)},
        "feed_forward.down": {"down": (0, config.hidden_size)},
    }
    if cross:
        found |= {
            "cross_attention.query": {"query": (0, query)},
            "cross_attention.key_value": {"key": (0, key), "value": (key, key)},
            "cross_attention.output": output,
        }
    return found


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
