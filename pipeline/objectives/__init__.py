"""Training objectives, one file each; see `base.Objective` for what a file offers.

`OBJECTIVES` names them by the `kind` of their settings. Encoders: mlm (with nsp), span (SpanBERT), rtd
(ELECTRA), distill. Decoders: clm, prefix_lm. Encoder-decoders: bart_denoising, mbart_denoising, t5_span_corruption,
ul2_mixture_of_denoisers. ELMo: bilm.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any

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
from pipeline.objectives.vocabulary import Vocabulary
from pipeline.samples.noise.noise import Noise

ObjectiveChoice = Annotated[
    MaskedLM
    | SpanMasking
    | ReplacedTokenDetection
    | Distillation
    | CausalLM
    | PrefixLM
    | BartDenoising
    | MBartDenoising
    | SpanCorruption
    | MixtureOfDenoisers
    | BidirectionalLM,
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
"""By objective that makes texts of different lengths of rows of one length: about how many tokens it makes the network
write of each sample, by settings, the run's noise, `Packed.sample_ids`, `Packed.epochs` and the length of a row."""
FIT_CHECKS: Mapping[str, Callable[[Any, Any, Vocabulary], None]] = {
    "rtd": rtd.check_fit,
    "distill": distill.check_fit,
    "bilm": bilm.check_fit,
}
"""By objective that does not go with every network and vocabulary: raises ConfigError or MismatchError where its
settings, the network's and the tokens do not go together."""
