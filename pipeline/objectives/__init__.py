"""Training objectives, one file each, by the `kind` of their settings; `base.Objective` says what an objective offers.

The loops that several share are in `kernels`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Union

from pydantic import Field

from pipeline.objectives.bart_denoising import BartDenoising
from pipeline.objectives.base import Objective
from pipeline.objectives.bilm import BidirectionalLM
from pipeline.objectives.clm import CausalLM
from pipeline.objectives.distill import Distillation
from pipeline.objectives.mbart_denoising import MBartDenoising
from pipeline.objectives.mlm import MaskedLM
from pipeline.objectives.prefix_lm import PrefixLM
from pipeline.objectives.rtd import ReplacedTokenDetection
from pipeline.objectives.span import SpanMasking
from pipeline.objectives.t5_span_corruption import SpanCorruption
from pipeline.objectives.ul2_mixture_of_denoisers import MixtureOfDenoisers

_OBJECTIVES: tuple[type[Objective], ...] = (
    # Encoders: BERT, SpanBERT, ELECTRA, DistilBERT.
    MaskedLM,
    SpanMasking,
    ReplacedTokenDetection,
    Distillation,
    # Decoders.
    CausalLM,
    PrefixLM,
    # Encoder-decoders.
    BartDenoising,
    MBartDenoising,
    SpanCorruption,
    MixtureOfDenoisers,
    # ELMo.
    BidirectionalLM,
)
OBJECTIVES: Mapping[str, type[Objective]] = {one.model_fields["kind"].default: one for one in _OBJECTIVES}
"""The objectives."""

if TYPE_CHECKING:
    ObjectiveChoice = Any
else:
    ObjectiveChoice = Annotated[Union[_OBJECTIVES], Field(discriminator="kind")]  # noqa: UP007
    """Settings of any objective."""
