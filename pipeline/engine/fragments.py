"""What this rank holds of the weights and of their average, without copies and without communication."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from torch import Tensor

from pipeline.engine.deepspeed.shards import own_shards

if TYPE_CHECKING:
    from pipeline.engine.deepspeed.training_engine import TrainingEngine

AVERAGE = "ema"
"""Key of the moving average in the optimizer's state."""


@dataclass(frozen=True, slots=True)
class Fragment:
    """A stretch of a parameter that this rank keeps."""

    name: str
    """Of the parameter, as in the network's `named_parameters()`."""
    start: int
    """Its first element in the flattened parameter."""
    values: Tensor
    """[elements] float32, a view of the live tensor: the next update changes it."""


def own_fragments(engine: TrainingEngine, key: Literal["fp32", "ema"]) -> Iterator[Fragment]:
    """This rank's share of the master weights (`fp32`) or of their moving average (`ema`).

    Over all ranks every element of every parameter comes exactly once. In ZeRO stage 0, where all ranks hold all, rank
    0 gives everything. Before the first update the average is the weights.
    """
    deepspeed = engine.deepspeed
    if deepspeed.zero_optimization_stage() == 0 and deepspeed.global_rank != 0:
        return
    for shard in own_shards(deepspeed):
        tensor = shard.weights if key == "fp32" else shard.state.get(AVERAGE, shard.weights)
        flat = tensor.detach().view(-1)
        for piece in shard.pieces:
            yield Fragment(piece.name, piece.start, flat.narrow(0, piece.offset, piece.size))
