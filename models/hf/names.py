"""Tables of tensor names: ours, theirs, and the layout.

A table is a list of `Names`. Most tensors only change their name. Some are fused on our side (queries, keys and values
in the rows of one matrix), and some are transposed on theirs (GPT-2's `Conv1D`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from models.config import TransformerConfig
from models.weights import check_tensors


@dataclass(frozen=True, slots=True)
class Names:
    """One of our tensors, and the tensors of `transformers` that hold its rows."""

    ours: str
    theirs: tuple[str, ...]
    transposed: bool = False
    """Whether theirs are [columns, rows]."""
    sizes: tuple[int, ...] = ()
    """Rows in each of theirs; without sizes, all have equally many."""
    skipped: int = 0
    """Rows of theirs before our first, which nothing reads and which are written as zeros."""


def parameter(ours: str, *theirs: str, skipped: int = 0) -> list[Names]:
    """One tensor; `skipped` as in `Names`."""
    return [Names(ours, theirs, skipped=skipped)]


def module(
    ours: str, *theirs: str, bias: bool = True, transposed: bool = False, sizes: tuple[int, ...] = ()
) -> list[Names]:
    """The `weight` and, where there is one, the `bias` of a linear layer or a norm.

    Args:
        ours: name of our module.
        theirs: names of the modules that it is divided into there.
        bias: whether they have one.
        transposed: whether the weight is transposed there.
        sizes: as in `Names`.
    """
    names = [Names(f"{ours}.weight", tuple(f"{name}.weight" for name in theirs), transposed, sizes)]
    return names + [Names(f"{ours}.bias", tuple(f"{name}.bias" for name in theirs), sizes=sizes)] * bias


def layers(
    num_layers: int,
    ours: str,
    theirs: str,
    modules: Mapping[str, Sequence[str]],
    *,
    sizes: Mapping[str, tuple[int, ...]] = {},
    bias: bool = True,
    transposed: Collection[str] = (),
) -> list[Names]:
    """The modules of all layers.

    Args:
        ours: beginning of our names up to the index of the layer.
        theirs: beginning of theirs.
        modules: our modules of a layer, with theirs.
        sizes: by our module, as in `Names`.
        bias: as in `module`.
        transposed: our modules whose weights are transposed there.
    """
    return [
        names
        for number in range(num_layers)
        for own, parts in modules.items()
        for names in module(
            f"{ours}{number}.{own}",
            *(f"{theirs}{number}.{part}" for part in parts),
            bias=bias,
            transposed=own in transposed,
            sizes=sizes.get(own, ()),
        )
    ]


def vocabulary_names(config: TransformerConfig) -> list[Names]:
    """The vocabulary projection, where it is not the token embedding."""
    return [] if config.tie_embeddings else parameter("head.weight", "lm_head.weight")


def to_their_names(table: Iterable[Names], state_dict: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Our tensors under their names and in their layout; memory may be shared."""
    renamed = {}
    for names in table:
        tensor = state_dict[names.ours]
        if names.skipped:
            tensor = torch.cat([tensor.new_zeros(names.skipped, *tensor.shape[1:]), tensor])
        parts = tensor.split(names.sizes) if names.sizes else tensor.chunk(len(names.theirs))
        for theirs, part in zip(names.theirs, parts, strict=True):
            renamed[theirs] = part.t() if names.transposed else part
    return renamed


def to_our_names(table: Iterable[Names], tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Their tensors under our names and in our layout; memory may be shared."""
    renamed = {}
    for names in table:
        parts = [tensors[theirs].t() if names.transposed else tensors[theirs] for theirs in names.theirs]
        whole = parts[0] if len(parts) == 1 else torch.cat(parts)
        renamed[names.ours] = whole[names.skipped :]
    return renamed


def import_tensors(
    table: Iterable[Names], expected: Mapping[str, Tensor], tensors: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Their tensors under our names, after names and shapes have been checked.

    Args:
        expected: our state dict; may be on the meta device.
        tensors: all of theirs.

    Raises:
        ValueError: tensors are missing, unexpected or of another shape; they are named as they are there.
    """
    table = list(table)
    check_tensors(to_their_names(table, expected), tensors, "the Hugging Face state dict")
    return to_our_names(table, tensors)
