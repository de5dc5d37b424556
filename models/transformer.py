"""The Transformer core: one layer, the stack of layers, and the choice of the kernel that computes attention."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from models.attention import CrossAttention, DecoderCache, SelfAttention
from models.config import Activation, NetworkConfig, TransformerConfig
from models.embeddings import RelativeBias, Rotation, rotary_angles
from models.functional import FusedLinear, dropout, make_norm
from models.layout import WORTH_IT, Layout, Memory, ReadPositions, Unpadded, side_by_side, unpadded
from models.visibility import Visible, see, see_memory

ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
}


class FeedForward(nn.Module):
    """Position-wise feed-forward block (Vaswani et al. 2017, section 3.3), gated or not (Shazeer 2020, section 2).

    A gated block has twice the rows in `up`: first those that go through the activation, then their factors.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        inner = config.intermediate_size
        rows = (inner, inner) if config.gated else (inner,)
        self.up = FusedLinear(config.hidden_size, rows, bias=config.biases)
        self.down = nn.Linear(inner, config.hidden_size, bias=config.biases)
        self.activation = ACTIVATIONS[config.activation]
        self.gated = config.gated
        self.dropout = config.activation_dropout

    def forward(self, hidden: Tensor) -> Tensor:
        """[..., hidden] to [..., hidden], each position by itself."""
        inner = self.up(hidden)
        if self.gated:
            activated, factor = inner.chunk(2, -1)
            inner = self.activation(activated) * factor
        else:
            inner = self.activation(inner)
        return self.down(dropout(inner, self.dropout, self.training))


class TransformerLayer(nn.Module):
    """Self-attention, in a decoder that reads a memory cross-attention, and a feed-forward block, each with dropout, a
    residual sum and normalisation."""

    def __init__(self, config: TransformerConfig, *, cross: bool = False, first: bool = False) -> None:
        super().__init__()
        self.attention = SelfAttention(config)
        self.attention_norm = nn.Identity() if first and not config.first_norm else make_norm(config)
        self.cross_attention = CrossAttention(config) if cross else None
        self.cross_attention_norm = make_norm(config) if cross else None
        self.feed_forward = FeedForward(config)
        self.feed_forward_norm = make_norm(config)
        self.pre_norm = config.norm == "pre"
        self.dropout = config.dropout
        own = config.attention_output_dropout
        self.attention_dropout = config.dropout if own is None else own
        # Adapters take a block's input and output and return another output; see `models.peft.adapters`.
        self.attention_adapter: nn.Module | None = None
        self.cross_attention_adapter: nn.Module | None = None
        self.feed_forward_adapter: nn.Module | None = None
        self.output_adapter: nn.Module | None = None
        """After the whole layer."""

    def forward(
        self,
        hidden: Tensor,
        visible: Visible,
        rotation: Rotation | None = None,
        memory: Tensor | None = None,
        visible_memory: Visible | None = None,
        cache: DecoderCache | None = None,
        number: int = 0,
        places: Unpadded | None = None,
        read: ReadPositions | None = None,
    ) -> Tensor:
        """Shapes and arguments as in `SelfAttention.forward`, and in `CrossAttention.forward`.

        Args:
            visible, rotation: of self-attention.
            visible_memory: what of the memory each position may read.
            cache: of the whole decoder; this layer is its `number`.
            read: the positions that are computed after the last attention, where not all are.
        """
        own = cache.self_attention[number] if cache else None
        kept = read if self.cross_attention is None else None
        attention = partial(
            self.attention, visible=visible, rotation=rotation, cache=own, places=places, read=kept
        )
        hidden = self._residual(
            hidden, attention, self.attention_norm, self.attention_dropout, self.attention_adapter, kept
        )
        if self.cross_attention is not None:
            assert memory is not None
            assert visible_memory is not None
            assert self.cross_attention_norm is not None
            other = cache.cross_attention[number] if cache else None
            across = partial(
                self.cross_attention, memory=memory, visible=visible_memory, cache=other, read=read
            )
            hidden = self._residual(
                hidden,
                across,
                self.cross_attention_norm,
                self.attention_dropout,
                self.cross_attention_adapter,
                read,
            )
        hidden = self._residual(
            hidden, self.feed_forward, self.feed_forward_norm, self.dropout, self.feed_forward_adapter
        )
        return hidden if self.output_adapter is None else self.output_adapter(hidden, hidden)

    def _residual(
        self,
        hidden: Tensor,
        block: Callable[[Tensor], Tensor],
        norm: nn.Module,
        probability: float,
        adapter: nn.Module | None,
        read: ReadPositions | None = None,
    ) -> Tensor:
        """One sub-layer with its residual sum; `read` says which positions the block gives, where not all.

        Post-norm is LayerNorm(x + f(x)) (Vaswani et al. 2017, section 3.1); pre-norm is x + f(LayerNorm(x))
        (Xiong et al. 2020, section 3).
        """
        inputs = norm(hidden) if self.pre_norm else hidden
        output = dropout(block(inputs), probability, self.training)
        if read is not None:
            hidden, inputs = read.of_tokens(hidden), read.of_tokens(inputs)
        if adapter is not None:
            output = adapter(inputs, output)
        return hidden + output if self.pre_norm else norm(hidden + output)


class Transformer(nn.Module):
    """A stack of layers; with pre-norm, a last normalisation brings the residual stream back to unit scale."""

    def __init__(
        self,
        config: TransformerConfig,
        num_layers: int | None = None,
        *,
        causal: bool = False,
        cross: bool = False,
    ) -> None:
        super().__init__()
        count = config.num_layers if num_layers is None else num_layers
        self.config = config
        self.causal = causal
        self.layers = nn.ModuleList(
            TransformerLayer(config, cross=cross, first=number == 0) for number in range(count)
        )
        self.output_dropout = config.output_dropout
        self.final_norm = make_norm(config) if config.norm == "pre" else nn.Identity()
        self.relative_bias = (
            RelativeBias(
                config.relative_buckets, config.relative_max_distance, config.num_heads, causal=causal
            )
            if config.positions == "relative_bias"
            else None
        )
        """T5 shares one bias among the layers of a stack."""
        self.is_local = [
            config.local_window is not None and number % config.global_every != 0 for number in range(count)
        ]
        self.prefix: nn.Module | None = None
        self.memory_prefix: nn.Module | None = None
        """Parameters of the layers' prefixes; see `models.peft.prefix`."""
        self.states: list[Tensor] | None = None
        """Collects what each layer reads, and what the last one gives, [batch, length, hidden], where it is a list; see
        `models.features`."""
        self.varlen = False
        """Leave packed pieces to the variable-length kernel; see `choose_backend`."""
        self.gradient_checkpointing = False
        """Recompute each layer in the backward pass instead of keeping its activations (Chen et al. 2016)."""

    def forward(
        self,
        hidden: Tensor,
        layout: Layout,
        prefix_lengths: Tensor | None = None,
        memory: Memory | None = None,
        cache: DecoderCache | None = None,
        read: Tensor | None = None,
    ) -> Tensor:
        """[batch, length, hidden] embeddings to [batch, length, hidden] contextual representations, or to
        [read, hidden] with `read`.

        Args:
            layout: where the tokens lie.
            prefix_lengths: as in `visibility.see`.
            memory: what cross-attention reads.
            cache: of the tokens before.
            read: [read] int64 positions in the flattened batch, none of them padding: only these are given, and the
                last layer computes little else.
        """
        config = self.config
        places = unpadded(layout.present) if cache is None and memory is None else None
        in_rows = places
        if places is not None:
            hidden = places.tokens(hidden)
            in_rows, layout = side_by_side(places, layout)
        # The kernel has no dropout of attention weights.
        varlen = self.varlen and not (self.training and config.attention_dropout)
        bias = None
        if self.relative_bias is not None:
            bias = self.relative_bias(layout.length, layout.past + layout.length).to(hidden.dtype)

        def seen(window: int | None, rotary_base: float) -> tuple[Visible, Rotation | None]:
            visible = see(
                layout,
                causal=self.causal,
                window=window,
                prefix_lengths=prefix_lengths,
                bias=bias,
                varlen=varlen,
            )
            if config.positions != "rotary":
                return visible, None
            return visible, rotary_angles(layout.position_ids, config.head_size, rotary_base)

        everywhere = seen(None, config.rotary_base)
        nearby = everywhere
        if any(self.is_local):
            nearby = seen(config.local_window, config.local_rotary_base or config.rotary_base)
        remembered = None, None
        if memory is not None:
            remembered = memory.hidden, see_memory(layout, memory.layout, varlen=varlen)
        recompute = self.gradient_checkpointing and torch.is_grad_enabled() and cache is None
        kept = None
        # The last layer computes all positions if almost all are read or states are collected.
        if read is not None and self.states is None and self.layers:
            few = len(read) < WORTH_IT * hidden.shape[:2].numel()
            kept = ReadPositions.of(read, places, in_rows) if few else None
        for number, (layer, is_local) in enumerate(zip(self.layers, self.is_local, strict=True)):
            if self.states is not None:
                self.states.append(hidden if places is None else places.rows(hidden))
            seen_here = nearby if is_local else everywhere
            kept_here = kept if number == len(self.layers) - 1 else None
            arguments = (hidden, *seen_here, *remembered, cache, number, in_rows, kept_here)
            # The random state is saved and restored, so dropout is the same in both computations.
            hidden = checkpoint(layer, *arguments, use_reentrant=False) if recompute else layer(*arguments)
        hidden = dropout(self.final_norm(hidden), self.output_dropout, self.training)
        if kept is not None:
            return hidden.squeeze(0)
        hidden = hidden if places is None else places.rows(hidden)
        if self.states is not None:
            self.states.append(hidden)
        return hidden if read is None else hidden.flatten(0, 1).index_select(0, read)


Backend = Literal["auto", "sdpa", "varlen"]


class Choice(NamedTuple):
    """A decision with its reason, for the log."""

    backend: Literal["sdpa", "varlen"]
    reason: str


_LEAST_CAPABILITY = (8, 0)
"""Compute capability of the first GPUs that flash attention has kernels for: Ampere (Dao 2023)."""
_LARGEST_HEAD = 192
"""Largest head size with a backward pass of flash attention on all of them."""


def choose_backend(
    config: NetworkConfig,
    requested: Backend,
    *,
    device: torch.device,
    dtype: torch.dtype,
    capability: tuple[int, int] | None = None,
) -> Choice:
    """`varlen` flash attention reads packed pieces without computing what they must not see; it needs a CUDA device of
    compute capability 8.0, half precision, heads that its kernels know, no position bias and no dropout of attention
    weights. Everything else is `sdpa`.

    Args:
        capability: compute capability of the device; None asks it, and takes one that does not exist for a new one.

    Raises:
        ValueError: `varlen` is asked for where it cannot work; says why.
    """
    if requested == "sdpa":
        return Choice("sdpa", "asked for")
    obstacles = []
    own = capability or (
        torch.cuda.get_device_capability(device)
        if device.type == "cuda" and torch.cuda.is_available()
        else _LEAST_CAPABILITY
    )
    if not isinstance(config, TransformerConfig):
        obstacles.append("the network has no attention")
    else:
        if config.positions == "relative_bias":
            obstacles.append("positions: relative_bias adds numbers to the scores")
        if config.attention_dropout:
            obstacles.append(f"attention_dropout is {config.attention_dropout}, and the kernel has none")
        if config.head_size % 8 or config.head_size > _LARGEST_HEAD:
            obstacles.append(f"heads have size {config.head_size}, not a multiple of 8 up to {_LARGEST_HEAD}")
    if device.type != "cuda":
        obstacles.append(f"the device is {device.type}, not cuda")
    elif own < _LEAST_CAPABILITY:
        obstacles.append(f"the GPU's compute capability is {own[0]}.{own[1]}, not 8.0 or higher")
    if dtype not in (torch.bfloat16, torch.float16):
        obstacles.append(f"the precision is {dtype}, not bfloat16 or float16")
    if not obstacles:
        return Choice("varlen", "packed pieces, half precision and CUDA")
    if requested == "varlen":
        raise ValueError(
            f"attention_backend: varlen is not possible: {'; '.join(obstacles)}; take attention_backend: auto"
        )
    return Choice("sdpa", "; ".join(obstacles))


def use_backend(model: nn.Module, choice: Choice) -> None:
    """Make every stack of a network follow the choice."""
    for module in model.modules():
        if isinstance(module, Transformer):
            module.varlen = choice.backend == "varlen"
