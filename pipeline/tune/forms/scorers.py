"""How networks score labels: what tasks of classification and of tagging share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from models.config import FeatureSettings, NetworkConfig
from pipeline.tune.forms.base import Part, feature_parts, unwrapped


@dataclass(frozen=True, slots=True)
class Scorer:
    """How one kind of network scores labels."""

    build: Callable[[Any, int], nn.Module]
    """(configuration, number of labels) to a network that gives logits of the labels."""
    parts: tuple[Part, ...]
    """The parts that start from a checkpoint."""
    penalty: Callable[[Any], Tensor] | None = None
    """(network) to a penalty on its weights, a scalar that is added to the loss of an update."""

    def penalised(self, loss: Tensor, model: nn.Module, predictions: Tensor | int) -> Tensor:
        """A loss that is summed over so many predictions, with the network's penalty."""
        # An update divides by the number of its predictions, so their penalties add up to one.
        return loss if self.penalty is None else loss + self.penalty(unwrapped(model)) * predictions


def scorer_of(
    whole: Scorer, on_features: Any, network: NetworkConfig, features: FeatureSettings | None
) -> Scorer:
    """How a network scores labels: whole, or by a linear layer on frozen features.

    Args:
        on_features: the class of the linear layer, which is made from configuration, number of labels and features.
    """
    if features is None:
        return whole
    return Scorer(
        build=lambda config, num_labels: on_features(config, num_labels, features),
        parts=feature_parts(network.network),
        penalty=on_features.penalty,
    )
