"""Keys and values of tokens that a decoder has read, so that the next one costs one position."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

SPARE_POSITIONS = 32
"""Positions that a cache makes room for at least when it grows."""


class LayerCache:
    """Keys and values of one attention, [rows, heads, length, head size] each.

    They lie in tensors with room for more positions, so that another one is written and nothing is copied. For use
    without gradients.
    """

    def __init__(self) -> None:
        self._keys: Tensor | None = None
        self._values: Tensor | None = None
        self.length = 0
        """Positions held."""

    @property
    def filled(self) -> bool:
        """Whether it holds anything."""
        return self.length > 0

    @property
    def rows(self) -> int:
        """Rows held."""
        return 0 if self._keys is None else len(self._keys)

    def pair(self) -> tuple[Tensor, Tensor]:
        """The keys and values held; only when `filled`."""
        assert self._keys is not None
        assert self._values is not None
        return self._keys[:, :, : self.length], self._values[:, :, : self.length]

    def extend(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Add the keys and values of further positions; returns the keys and values of all."""
        start, self.length = self.length, self.length + key.shape[2]
        self._keys = _write(self._keys, key, start)
        self._values = _write(self._values, value, start)
        return self.pair()

    def select(self, rows: Tensor) -> None:
        """Keep the given rows, in their order; a row may be taken more than once."""
        if self._keys is not None and self._values is not None:
            rows = rows.to(self._keys.device)
            self._keys = _select(self._keys, rows, self.length)
            self._values = _select(self._values, rows, self.length)


@dataclass
class DecoderCache:
    """The caches of all layers of a decoder."""

    self_attention: list[LayerCache]
    """One per layer."""
    cross_attention: list[LayerCache] = field(default_factory=list)
    """One per layer of an encoder-decoder's decoder; none otherwise."""

    @classmethod
    def empty(cls, num_layers: int, *, cross: bool) -> DecoderCache:
        """Caches for a decoder that has read nothing."""
        own = [LayerCache() for _ in range(num_layers)]
        return cls(own, [LayerCache() for _ in range(num_layers)] if cross else [])

    @property
    def length(self) -> int:
        """Positions of the decoder that were read."""
        return self.self_attention[0].length

    @property
    def rows(self) -> int:
        """Rows of the decoder."""
        return self.self_attention[0].rows

    def select(self, rows: Tensor) -> None:
        """Keep the given rows of the decoder in all layers, as beam search needs it. Keys and values of the memory
        stay, so rows that share a memory must go on sharing it."""
        for cache in self.self_attention:
            cache.select(rows)

    def select_memory(self, rows: Tensor) -> None:
        """Keep the given rows of the memory in all layers."""
        for cache in self.cross_attention:
            cache.select(rows)


def _write(held: Tensor | None, new: Tensor, start: int) -> Tensor:
    """Put [rows, heads, count, size] at position `start`, in a larger tensor if there is no room."""
    end = start + new.shape[2]
    if held is None:
        return new
    if end > held.shape[2]:
        larger = held.new_empty(
            *held.shape[:2], max(end, start + SPARE_POSITIONS, start * 3 // 2), held.shape[3]
        )
        larger[:, :, :start] = held[:, :, :start]
        held = larger
    held[:, :, start:end] = new
    return held


def _select(held: Tensor, rows: Tensor, length: int) -> Tensor:
    """Rows of the first `length` positions, with room for as many positions as before."""
    selected = held.new_empty(len(rows), *held.shape[1:])
    torch.index_select(held[:, :, :length], 0, rows, out=selected[:, :, :length])
    return selected
