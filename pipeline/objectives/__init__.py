"""Training objectives, one file each, by the `kind` of their settings; `base.Objective` says what a file offers.

`nsp` is a second term of those that read pairs. The loops that several share are in `kernels`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Union

import numpy as np
from pydantic import Field

from models.config import NetworkConfig
from pipeline.objectives import (
    bart_denoising,
    bilm,
    clm,
    distill,
    mbart_denoising,
    mlm,
    prefix_lm,
    rtd,
    span,
    t5_span_corruption,
    ul2_mixture_of_denoisers,
)
from pipeline.objectives.base import Objective, OutsideModels
from pipeline.objectives.vocabulary import Vocabulary
from pipeline.samples.noise import Noise

if TYPE_CHECKING:
    from torch import nn


_MODULES: tuple[Objective, ...] = (
    # Encoders: BERT, SpanBERT, ELECTRA, DistilBERT.
    mlm,
    span,
    rtd,
    distill,
    # Decoders.
    clm,
    prefix_lm,
    # Encoder-decoders.
    bart_denoising,
    mbart_denoising,
    t5_span_corruption,
    ul2_mixture_of_denoisers,
    # ELMo.
    bilm,
)
OBJECTIVES: Mapping[str, Objective] = {one.SETTINGS.model_fields["kind"].default: one for one in _MODULES}
"""The objectives."""

if TYPE_CHECKING:
    ObjectiveChoice = Any
else:
    ObjectiveChoice = Annotated[Union[tuple(one.SETTINGS for one in _MODULES)], Field(discriminator="kind")]  # noqa: UP007
    """Settings of any objective."""


def check_fit(settings: Any, config: NetworkConfig, vocabulary: Vocabulary, outside: OutsideModels) -> None:
    """Make sure that an objective goes with a network and a vocabulary; most go with all.

    Args:
        outside: the models that the settings refer to.

    Raises:
        ConfigError, MismatchError: they do not fit together.
    """
    if check := getattr(OBJECTIVES[settings.kind], "check_fit", None):
        check(settings, config, vocabulary, **outside)


def lengths_of(settings: Any) -> Callable[[Noise, np.ndarray, np.ndarray, int], np.ndarray] | None:
    """The lengths of an objective that turns rows of one length into texts of different lengths; None for others.

    A function from the run's noise, `Packed.sample_ids`, `Packed.epochs` and the length of a row to about how many
    tokens the network writes for each sample.
    """
    lengths = getattr(OBJECTIVES[settings.kind], "lengths", None)
    return lengths and partial(lengths, settings)


def build_model(settings: Any, config: Any, outside: OutsideModels) -> nn.Module:
    """The network with the heads that an objective trains.

    Args:
        settings: of the objective.
        config: of a network of a kind in the objective's `NETWORKS`.
        outside: the models that the settings refer to.

    Raises:
        ConfigError, MismatchError: they do not fit together.
    """
    return OBJECTIVES[settings.kind].build_model(settings, config, **outside)
