"""All objectives, by the `kind` of their settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import Field

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
from pipeline.objectives.base import Objective
from pipeline.objectives.outside import OutsideModels
from pipeline.samples.noise import Noise

if TYPE_CHECKING:
    from torch import nn

ObjectiveChoice = Annotated[
    mlm.MaskedLM
    | span.SpanMasking
    | rtd.ReplacedTokenDetection
    | distill.Distillation
    | clm.CausalLM
    | prefix_lm.PrefixLM
    | bart_denoising.BartDenoising
    | mbart_denoising.MBartDenoising
    | t5_span_corruption.SpanCorruption
    | ul2_mixture_of_denoisers.MixtureOfDenoisers
    | bilm.BidirectionalLM,
    Field(discriminator="kind"),
]
"""Settings of any objective."""

OBJECTIVES: Mapping[str, Objective] = {
    "mlm": mlm,
    "span": span,
    "rtd": rtd,
    "distill": distill,
    "clm": clm,
    "prefix_lm": prefix_lm,
    "bart_denoising": bart_denoising,
    "mbart_denoising": mbart_denoising,
    "t5_span_corruption": t5_span_corruption,
    "ul2_mixture_of_denoisers": ul2_mixture_of_denoisers,
    "bilm": bilm,
}
"""The objectives."""
LENGTHS: Mapping[str, Callable[[Any, Noise, np.ndarray, np.ndarray, int], np.ndarray]] = {
    "ul2_mixture_of_denoisers": ul2_mixture_of_denoisers.lengths,
}
"""Objectives that turn rows of one length into texts of different lengths: about how many tokens the network writes for
each sample, by settings, the run's noise, `Packed.sample_ids`, `Packed.epochs` and the length of a row."""
FIT_CHECKS: Mapping[str, Callable[..., None]] = {
    "rtd": rtd.check_fit,
    "distill": distill.check_fit,
    "bilm": bilm.check_fit,
}
"""Objectives that do not go with every network and vocabulary. A check is called with the settings, the network's
configuration, the vocabulary and, by keyword, the models that the settings refer to; it raises ConfigError or
MismatchError where they do not fit together."""


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
