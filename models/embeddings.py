"""Token, position and segment embeddings, and the other encodings of positions: sinusoidal, rotary, relative bias."""

from __future__ import annotations

import math
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.config import TransformerConfig
from models.functional import dropout, make_norm

Rotation: TypeAlias = tuple[Tensor, Tensor]
"""Cosines and sines of rotary positions, float32 [batch or 1, length, head size] each."""


def sinusoidal_embedding(positions: Tensor, width: int) -> Tensor:
    """sin(p / 10000^(2i/width)) at even and cos at odd dimensions (Vaswani et al. 2017, section 3.5).

    Turns positions of any shape into float32 [..., width].
    """
    exponents = torch.arange(0, width, 2, device=positions.device, dtype=torch.float32) / width
    angles = positions.unsqueeze(-1).float() * torch.exp(exponents * -math.log(10000.0))
    return torch.stack((angles.sin(), angles.cos()), -1).flatten(-2)[..., :width]


def rotary_angles(positions: Tensor, head_size: int, base: float) -> Rotation:
    """Cosines and sines, float32 [..., length, head_size], for [..., length] positions (Su et al. 2021, equation 34).

    Dimension i is paired with i + head_size / 2, as in GPT-NeoX and ModernBERT.
    """
    exponents = torch.arange(0, head_size, 2, device=positions.device, dtype=torch.float32) / head_size
    angles = positions.unsqueeze(-1).float() / base**exponents
    both = torch.cat((angles, angles), -1)
    return both.cos(), both.sin()


def rotate(heads: Tensor, rotation: Rotation) -> Tensor:
    """Turn [batch, heads, length, head size] queries or keys by the angles of their positions."""
    cosine, sine = (part.unsqueeze(-3) for part in rotation)
    first, second = heads.float().chunk(2, -1)
    turned = torch.cat((-second, first), -1)
    return (heads.float() * cosine + turned * sine).to(heads.dtype)


class RelativeBias(nn.Module):
    """A learned number per head and bucket of distances, added to attention scores (Raffel et al. 2020, section 2.1).

    Half of the buckets are exact distances, the others grow logarithmically up to `max_distance`; an encoder
    keeps half of all for keys to the right.
    """

    def __init__(self, num_buckets: int, max_distance: int, num_heads: int, *, causal: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(num_buckets, num_heads))
        self.num_buckets = num_buckets
        self.max_distance = max_distance
        self.causal = causal

    def forward(self, num_queries: int, num_keys: int) -> Tensor:
        """[1, heads, queries, keys] bias; the queries are the last of the keys."""
        device = self.weight.device
        key = torch.arange(num_keys, device=device)
        query = key[num_keys - num_queries :]
        offset, count = key[None, :] - query[:, None], self.num_buckets
        if self.causal:
            first, distance = torch.zeros_like(offset), (-offset).clamp_min(0)
        else:
            count //= 2
            first, distance = (offset > 0).long() * count, offset.abs()
        exact = count // 2
        share = (distance.clamp_min(1).float() / exact).log() / math.log(self.max_distance / exact)
        far = (exact + (share * (count - exact)).long()).clamp_max(count - 1)
        buckets = first + torch.where(distance < exact, distance, far)
        return F.embedding(buckets, self.weight).permute(2, 0, 1).unsqueeze(0)


class Embeddings(nn.Module):
    """Sum of token, position and segment embeddings, normalised, dropped out, projected (Devlin et al. 2019, section
    3, figure 2). Which of these there are is for the configuration to say.
    """

    def __init__(self, config: TransformerConfig, *, own_tokens: bool = True) -> None:
        """
        Args:
            own_tokens: False for the second stack of an encoder-decoder, which shares the first one's tokens.
        """
        super().__init__()
        width = config.embedding_width
        self.tokens = nn.Embedding(config.require_vocab_size(), width) if own_tokens else None
        self.positions = nn.Embedding(config.max_positions, width) if config.positions == "learned" else None
        self.segments = nn.Embedding(config.num_segments, width) if config.num_segments else None
        self.norm = make_norm(config, width) if config.embedding_norm else nn.Identity()
        self.projection = _projection(config)
        self.sinusoidal = config.positions == "sinusoidal"
        self.scale = math.sqrt(width) if config.scale_embeddings else 1.0
        self.dropout = config.dropout

    @property
    def token_weight(self) -> Tensor:
        """[vocab_size, embedding width]: the token embedding."""
        assert self.tokens is not None, "these embeddings share the tokens of another stack"
        return self.tokens.weight

    def forward(
        self,
        input_ids: Tensor,
        position_ids: Tensor,
        segment_ids: Tensor | None = None,
        token_weight: Tensor | None = None,
        projection: nn.Module | None = None,
    ) -> Tensor:
        """Embed tokens.

        Args:
            input_ids: [batch, length] int64.
            position_ids: [batch, length] or [length] int64, each below `max_positions`.
            segment_ids: [batch, length] int64 below `num_segments`; None takes segment 0 everywhere.
            token_weight: [vocab_size, width] of the stack that owns the tokens; None takes its own.
            projection: of the network that shares these embeddings; None takes its own.

        Returns:
            [batch, length, hidden].
        """
        weight = self.token_weight if token_weight is None else token_weight
        embedded = F.embedding(input_ids, weight)
        if self.scale != 1.0:
            embedded = embedded * self.scale
        if self.positions is not None:
            embedded = embedded + self.positions(position_ids)
        elif self.sinusoidal:
            embedded = embedded + sinusoidal_embedding(position_ids, embedded.shape[-1]).to(embedded.dtype)
        if self.segments is not None:
            segments = torch.zeros_like(input_ids) if segment_ids is None else segment_ids
            embedded = embedded + self.segments(segments)
        projection = self.projection if projection is None else projection
        return projection(dropout(self.norm(embedded), self.dropout, self.training))


class SharedEmbeddings(nn.Module):
    """The embeddings of another network (tokens, positions, segments, norm), with a projection of its own.

    Only the projection is part of this module, so that shared parameters have one name, their owner's, in optimizers
    and state dicts.
    """

    def __init__(self, config: TransformerConfig, owner: Embeddings) -> None:
        """
        Args:
            config: of the network that shares them; its embeddings have the owner's width.
        """
        super().__init__()
        self.projection = _projection(config)
        # In a tuple, the module is hidden from `parameters` and `state_dict`.
        self._owner = (owner,)

    @property
    def token_weight(self) -> Tensor:
        """[vocab_size, embedding width]: the owner's token embedding."""
        return self._owner[0].token_weight

    def forward(self, input_ids: Tensor, position_ids: Tensor, segment_ids: Tensor | None = None) -> Tensor:
        """As `Embeddings.forward`."""
        # Without the hooks of the owner's own forward pass.
        return self._owner[0].forward(input_ids, position_ids, segment_ids, projection=self.projection)


def _projection(config: TransformerConfig) -> nn.Module:
    """From the width of the embeddings to `hidden_size`, where they differ."""
    if config.embedding_width == config.hidden_size:
        return nn.Identity()
    return nn.Linear(config.embedding_width, config.hidden_size, bias=config.biases)
