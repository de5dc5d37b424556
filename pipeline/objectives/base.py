"""The interface of an objective: the samples it reads, how it corrupts a micro-batch, and the network it trains.

An objective is a module of this package with a settings class and the functions of `Objective`. Only `build_model`
imports torch, so that reading a configuration does not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from pipeline.objectives.terms import Term
from pipeline.objectives.vocabulary import Vocabulary
from pipeline.samples.noise.noise import Noise
from pipeline.samples.packed import Packed
from pipeline.samples.reading import Reading

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, slots=True)
class Batch:
    """A micro-batch ready for the network."""

    inputs: dict[str, np.ndarray]
    """Keyword arguments of the network's `forward`; arrays of int64 ids and positions, int32 boundaries, or
    float32 numbers, which become tensors on the rank's device."""
    counts: dict[str, int]
    """By loss term, how many predictions it sums over. The trainer divides each term's sum by the count of the
    global batch."""
    sources: np.ndarray | None = None
    """[predictions of the first term] int16, in their order: the number of the source that each predicted token
    comes from; None unless `Packed.sources` was filled in."""


class Objective(Protocol):
    """The functions of an objective's module. Networks return `(losses, correct)`: by term the summed loss
    (float32 scalar, in nats where it is a likelihood) and, where it applies, the right predictions (int64); beside the
    latter, the losses of the first term one by one (`models.losses.EACH`)."""

    NETWORKS: tuple[str, ...]
    """Kinds of network (`model.network`) that can carry the objective."""

    def reading(self, settings: Any, sequence_length: int) -> Reading:
        """The samples that it asks for."""
        ...

    def extra_tokens(self, settings: Any, languages: Sequence[str]) -> tuple[str, ...]:
        """Texts of tokens that the tokenizer may lack, such as `<mask>` or sentinels; appended to its vocabulary
        in this order. `languages` are the ISO 639-1 codes of the data."""
        ...

    def corrupt(self, packed: Packed, noise: Noise, settings: Any, vocabulary: Vocabulary) -> Batch:
        """Make inputs and targets. A pure function: `noise` is the run's, and this adds epoch, sample and
        position, so that a sample's noise does not depend on its micro-batch."""
        ...

    def terms(self, settings: Any) -> Mapping[str, Term]:
        """The terms of the loss by name; the first is also reported by source. One of them, or their weighted sum,
        decides which of two checkpoints is better (`terms.deciding_metric`)."""
        ...

    @property
    def build_model(self) -> Callable[..., nn.Module]:
        """Called with the settings, the configuration of a network of a kind in `NETWORKS`, and the models that the
        settings refer to (`outside.py`) by keyword: the network with the heads that this objective trains."""
        ...


def boundaries(packed: Packed) -> dict[str, np.ndarray]:
    """`cu_seqlens` as a network's argument; left out when every row is a single piece, which needs no mask."""
    return {} if len(packed.cu_seqlens) == len(packed.input_ids) + 1 else {"cu_seqlens": packed.cu_seqlens}
