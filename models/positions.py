"""Position encodings other than learned embeddings: sinusoidal, rotary, relative bias."""

from __future__ import annotations

import math
from typing import TypeAlias

import torch
from torch import Tensor, nn

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
        buckets = self._buckets(key[None, :] - query[:, None])
        return torch.nn.functional.embedding(buckets, self.weight).permute(2, 0, 1).unsqueeze(0)

    def _buckets(self, offset: Tensor) -> Tensor:
        """int64 buckets of key position minus query position."""
        count = self.num_buckets
        if self.causal:
            first, distance = torch.zeros_like(offset), (-offset).clamp_min(0)
        else:
            count //= 2
            first, distance = (offset > 0).long() * count, offset.abs()
        exact = count // 2
        share = (distance.clamp_min(1).float() / exact).log() / math.log(self.max_distance / exact)
        far = (exact + (share * (count - exact)).long()).clamp_max(count - 1)
        return first + torch.where(distance < exact, distance, far)
