"""UL2: a mixture of denoisers, each announced by a mode token (Tay et al. 2022, section 3.1 and table 1).

A denoiser is T5's span corruption with its own mean length and rate. R denoisers hide short spans, X denoisers long
spans or much of the text, the S denoiser the end of it (prefix language modelling).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
from pydantic import Field

from pipeline.config.loading import Config
from pipeline.objectives.base import Batch
from pipeline.objectives.encoder_decoder import Denoising
from pipeline.objectives.kernels.span_noise import Denoisers, target_lengths
from pipeline.objectives.t5_span_corruption import (
    corrupt_spans,
    reading_of,
    sentinel_texts,
    span_tokens,
)
from pipeline.objectives.vocabulary import Vocabulary
from pipeline.samples.noise import Noise
from pipeline.samples.packed import Packed, Reading

if TYPE_CHECKING:
    from pipeline.samples.loader import Lengths

DenoiserKind = Literal["R", "S", "X"]
MODE_TOKENS: Mapping[DenoiserKind, str] = {"R": "[NLU]", "S": "[S2S]", "X": "[NLG]"}
"""The token that opens the encoder's text, as in the released checkpoints."""


class Denoiser(Config):
    """One way to corrupt a text."""

    kind: DenoiserKind
    """R and X take out spans anywhere; S takes out one, the end of the text."""
    rate: float = Field(gt=0, lt=1)
    """Share of the tokens that is taken out; with S its mean, by a uniform draw of the length."""
    mean_span_length: float = Field(default=3.0, ge=1)
    """Mean length of the spans, in tokens; without effect for S."""
    weight: float = Field(default=1.0, gt=0)
    """Share of the samples, relative to the other denoisers."""


_TABLE_1 = (
    Denoiser(kind="R", mean_span_length=3, rate=0.15),
    Denoiser(kind="R", mean_span_length=8, rate=0.15),
    Denoiser(kind="S", rate=0.25),
    Denoiser(kind="X", mean_span_length=3, rate=0.5),
    Denoiser(kind="X", mean_span_length=8, rate=0.5),
    Denoiser(kind="X", mean_span_length=64, rate=0.15),
    Denoiser(kind="X", mean_span_length=64, rate=0.5),
)


class MixtureOfDenoisers(Denoising):
    """UL2's objective; the seven denoisers of table 1, equally often."""

    kind: Literal["ul2_mixture_of_denoisers"] = "ul2_mixture_of_denoisers"
    denoisers: tuple[Denoiser, ...] = Field(default=_TABLE_1, min_length=1)
    """One is drawn for every sample."""
    mode_tokens: bool = True
    """Whether the encoder's text opens with the token of its denoiser's kind."""
    num_sentinels: int = Field(default=100, ge=1)
    """Tokens `<extra_id_0>`, `<extra_id_1>`, ... of the vocabulary; a text has no more spans than that."""

    def reading(self, sequence_length: int) -> Reading:
        """Rows so long that no denoiser gives the encoder more than `sequence_length`.

        Raises:
            ConfigError: a text could have more spans than there are sentinels.
        """
        denoisers = self._denoisers(dict.fromkeys(MODE_TOKENS.values(), 0))
        return reading_of(denoisers, sequence_length, self.num_sentinels)

    def extra_tokens(self, languages: Sequence[str]) -> tuple[str, ...]:
        """Mode tokens, then the sentinels; `<extra_id_0>` is the last id, as in T5's vocabulary."""
        modes = tuple(MODE_TOKENS.values()) if self.mode_tokens else ()
        return (*modes, *sentinel_texts(self.num_sentinels)[::-1])

    def corrupt(self, packed: Packed, noise: Noise, vocabulary: Vocabulary) -> Batch:
        """Draw a denoiser for every sample and take spans out of its pieces; else as T5 does.

        Encoder and decoder have the columns that the longest texts of the micro-batch need. The loader sorts the
        samples of a step by `lengths`, so that most micro-batches have one denoiser.
        """
        at_samples = _at(noise, packed.sample_ids, packed.epochs)
        denoisers = self._denoisers(vocabulary.roles)
        return corrupt_spans(
            packed,
            at_samples.bits(),
            choose_denoisers(self, at_samples),
            denoisers,
            span_tokens(vocabulary, self.num_sentinels),
            tight=True,
        )

    def lengths(self, noise: Noise) -> Lengths:
        """The tokens that the decoder writes for each sample, if its row is one text."""
        denoisers = self._denoisers(dict.fromkeys(MODE_TOKENS.values(), 0))

        def written(sample_ids: np.ndarray, epochs: np.ndarray, length: int) -> np.ndarray:
            at_samples = _at(noise, sample_ids, epochs)
            return target_lengths(
                length - 1, at_samples.bits(), choose_denoisers(self, at_samples), denoisers
            )

        return written

    def _denoisers(self, ids: Mapping[str, int]) -> Denoisers:
        """The denoisers as arrays; `ids` holds the ids of the mode tokens."""
        return Denoisers(
            rates=np.asarray([each.rate for each in self.denoisers]),
            mean_lengths=np.asarray([each.mean_span_length for each in self.denoisers]),
            is_suffix=np.asarray([each.kind == "S" for each in self.denoisers]),
            free_ends=np.asarray([each.kind != "S" for each in self.denoisers]),
            modes=np.asarray(
                [ids[MODE_TOKENS[each.kind]] if self.mode_tokens else -1 for each in self.denoisers]
            ),
        )


def choose_denoisers(settings: MixtureOfDenoisers, noise: Noise) -> np.ndarray:
    """[batch] int64 index of the denoiser for each sample, in proportion to their weights."""
    shares = np.cumsum([denoiser.weight for denoiser in settings.denoisers])
    draws = noise.at("denoiser").uniform() * shares[-1]
    return np.searchsorted(shares[:-1], draws, side="right").astype(np.int64)


def _at(noise: Noise, sample_ids: np.ndarray, epochs: np.ndarray) -> Noise:
    """The noise of each sample."""
    return noise.at("ul2_mixture_of_denoisers", epochs, sample_ids)
