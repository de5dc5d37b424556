"""Which layers of a network become the features of a token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

Combination = Literal["last", "layer", "sum_last_four", "concat_last_four", "sum_all", "scalar_mix"]


@dataclass(frozen=True)
class FeatureSettings:
    """Which layers become the features of a token (Devlin et al. 2019, table 7)."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}

    combine: Combination = "last"
    """`last`, one `layer`, the sum or the concatenation of the last four, the sum of all, or a learned mixture of all,
    the embeddings included (Peters et al. 2018, equation 1)."""
    layer: int | None = None
    """With `layer`: its number; 0 are the embeddings, -1 is the last layer."""
    normalize: bool = False
    """With `scalar_mix`: bring each layer of each token to mean 0 and variance 1 first."""
    l2: float = 0.0
    """With `scalar_mix`: the penalty on the scores of the layers; at least 0."""

    def __post_init__(self) -> None:
        if (self.layer is None) == (self.combine == "layer"):
            raise ValueError(f"`layer` is for combine: layer, and needed there; combine is {self.combine}")
