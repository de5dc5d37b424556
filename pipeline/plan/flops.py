"""Model FLOPs of a micro-batch, forward and backward.

Counted are the multiplications and additions of matrix products (Chowdhery et al. 2022, appendix B). PyTorch's own
`FlopCounterMode` counts those outside of attention, on a network without storage; attention is a closed form, because
every kernel splits it into other operations. It counts every pair of tokens of the same document once, also where a
causal mask or a window hides some of them; pairs that packing hides between documents do not count. Neither do, in the
last layer and the vocabulary projection, positions that no head reads. The 6 N of papers counts all positions
everywhere, so at the same speed the MFU of a masked language model is lower here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from models.elmo.config import PADDING, ElmoConfig
from models.transformer import Transformer

_aten = torch.ops.aten
_PRODUCTS = {_aten.mm, _aten.addmm, _aten.addmm_, _aten.convolution, _aten.convolution_backward}
"""Operations that count as products outside of attention."""
BOTH_PASSES = 3
"""A backward pass takes twice the operations of the forward pass."""


class Flops(NamedTuple):
    """Operations of a micro-batch."""

    products: int
    """Operations of matrix products outside of attention."""
    attention: int
    """Operations of the two products of attention, scores and mixing."""

    @property
    def total(self) -> int:
        """All of them."""
        return self.products + self.attention


def without_storage(build: Callable[[], nn.Module]) -> nn.Module:
    """The network that `build` makes, with a teacher if it has one, on the meta device and in training mode."""
    with torch.device("meta"):
        model = build()
    if isinstance(teacher := getattr(model, "teacher", None), nn.Module):
        teacher.to("meta")
    return model.train()


def count_flops(model: nn.Module, inputs: Mapping[str, np.ndarray]) -> Flops:
    """Count a forward and a backward pass.

    Args:
        model: as `without_storage` makes it, without gradient checkpointing.
        inputs: arguments of its forward pass, as the objective makes them.
    """
    config: Any = model.config
    if isinstance(config, ElmoConfig):
        return Flops(_elmo_products(config, inputs), 0)
    tensors = {
        name: torch.empty(array.shape, dtype=torch.from_numpy(array[:0].copy()).dtype, device="meta")
        for name, array in inputs.items()
    }
    counter = FlopCounterMode(display=False, custom_mapping={_aten.addmm_: _addmm})
    with counter:
        losses, _ = model(**tensors)
        torch.stack(list(losses.values())).sum().backward()
    model.zero_grad(set_to_none=True)
    counts = counter.get_flop_counts()["Global"]
    products = sum(count for operation, count in counts.items() if operation in _PRODUCTS)
    return Flops(products, _attention(model, inputs))


def _addmm(total: Any, left: Any, right: Any, **_: Any) -> int:
    """PyTorch counts sums of products, but not those in place; shapes in, operations out."""
    return 2 * left[0] * left[1] * right[1]


def stacks_of(model: nn.Module) -> Iterator[tuple[Transformer, bool]]:
    """The stacks of layers of a network, and whether each reads a memory, as the decoder of an encoder-decoder does."""
    for module in model.modules():
        if isinstance(module, Transformer) and len(module.layers):
            yield module, getattr(module.layers[0], "cross_attention", None) is not None


def _attention(model: nn.Module, inputs: Mapping[str, np.ndarray]) -> int:
    teacher = getattr(model, "teacher", None)
    # A teacher is imitated, not trained: its forward pass alone counts.
    return BOTH_PASSES * _attention_forward(model, inputs) + (
        _attention_forward(teacher, inputs) if isinstance(teacher, nn.Module) else 0
    )


def _attention_forward(model: nn.Module, inputs: Mapping[str, np.ndarray]) -> int:
    """Two products of 2 operations for each pair of tokens, and each element of the heads."""
    read = _pieces(inputs, "")
    total = 0
    for stack, has_memory in stacks_of(model):
        own = _pieces(inputs, "decoder_") if has_memory else read
        pairs = int((own * own).sum()) + (int((own * read).sum()) if has_memory else 0)
        total += 4 * stack.config.attention_size * len(stack.layers) * pairs
    return total


def _pieces(inputs: Mapping[str, np.ndarray], side: str) -> np.ndarray:
    """[pieces] int64 tokens of each piece of text on one side of the network."""
    if (boundaries := inputs.get(f"{side}cu_seqlens")) is not None:
        return np.diff(boundaries.astype(np.int64))
    rows, length = inputs[f"{side}input_ids"].shape
    return np.full(rows, length, dtype=np.int64)


def _elmo_products(config: ElmoConfig, inputs: Mapping[str, np.ndarray]) -> int:
    """A closed form, because ELMo reads lengths of words and sentences, which tensors without storage do not have."""
    characters, cells, width = inputs["characters"], config.cell_size, config.projection_size
    columns = character_columns(config, characters)
    windows = sum((columns - size + 1) * size * number for size, number in config.filters)
    word = config.character_size * windows + config.num_filters * width
    word += 2 * config.num_highway_layers * config.num_filters**2
    num_words = len(inputs["words"])
    # The first word of a sentence has no state before it.
    continued = num_words - (len(inputs["cu_seqlens"]) - 1)
    layer = num_words * (4 * cells * width + cells * width) + continued * 4 * cells * width
    candidates = len(inputs["negatives"]) if "negatives" in inputs else config.require_vocab_size()
    softmax = len(inputs["predicted_positions"]) * candidates * width
    products = len(characters) * word + 2 * config.num_layers * layer + 2 * softmax
    return BOTH_PASSES * 2 * products


def character_columns(config: ElmoConfig, characters: np.ndarray) -> int:
    """Columns of `characters` that ELMo's convolutions read: no filter sees more than one window of padding."""
    used = int((characters != PADDING).any(0).sum()) if len(characters) else 0
    return min(used + max(width for width, _ in config.filters), characters.shape[1])
