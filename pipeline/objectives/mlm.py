"""Masked language modelling: predict the hidden 15% from both sides (Devlin et al. 2019, section 3.1).

`units` says which tokens are hidden together:

- `token`: each token by itself (Devlin et al. 2019; Liu et al. 2019).
- `word`: all tokens of a word, as in the whole-word masking of BERT's released code.
- `ngram`: up to `max_ngram` neighbouring words, n of them with a probability in proportion to 1/n (Lan et al. 2020,
  section 3.1). N-grams are drawn anywhere in the text, not from PMI's list of collocations (Levine et al. 2021).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
from pydantic import Field, model_validator

from cluster.compiled_loop import compiled_loop
from pipeline.objectives import nsp
from pipeline.objectives.base import Batch, Objective, OutsideModels, Term, boundaries
from pipeline.objectives.kernels.masking import (
    Masking,
    Spans,
    choose_spans,
    choose_tokens,
    empty_positions,
    hide_tokens,
    write_positions,
)
from pipeline.objectives.vocabulary import Vocabulary
from pipeline.samples.noise import Noise
from pipeline.samples.packed import Packed, Reading, Relation

if TYPE_CHECKING:
    from models.config import TransformerConfig
    from models.language_models import MaskedLanguageModel

Units = Literal["token", "word", "ngram"]


class EncoderObjective(Objective):
    """An objective of encoders that puts masks into their input."""

    NETWORKS = ("encoder",)

    def extra_tokens(self, languages: Sequence[str]) -> tuple[str, ...]:
        """The mask."""
        return ("<mask>",)


class MaskedLM(EncoderObjective):
    """Masked language modelling."""

    kind: Literal["mlm"] = "mlm"
    rate: float = Field(default=0.15, gt=0, lt=1)
    """Share of the maskable tokens of each sample that are predicted."""
    mask_share: float = Field(default=0.8, ge=0, le=1)
    """Share of the predicted positions whose input is `<mask>`."""
    random_share: float = Field(default=0.1, ge=0, le=1)
    """Share of the predicted positions whose input is a random token; the rest stay as they are."""
    dynamic: bool = True
    """New masks every epoch (Liu et al. 2019, section 4.1); False masks a sample alike in all epochs."""
    units: Units = "token"
    """Tokens that are hidden together: single tokens, whole words, or n-grams of whole words. Words and n-grams never
    exceed the rate, and fall short of it if no word fits into the rest."""
    max_ngram: int = Field(default=3, ge=1, le=20)
    """Words of the longest n-gram."""
    pairs: Relation | None = None
    """Also predict how the two segments of a pair belong together: next or random (`nsp`), in order or swapped
    (`sop`). null reads plain text."""

    @model_validator(mode="after")
    def _shares_fit(self) -> MaskedLM:
        if self.mask_share + self.random_share > 1:
            raise ValueError("mask_share + random_share must not exceed 1")
        return self

    def reading(self, sequence_length: int) -> Reading:
        """Any text; contiguous by default. Pairs, where they are predicted."""
        return nsp.reading(self.pairs, sequence_length)

    def corrupt(self, packed: Packed, noise: Noise, vocabulary: Vocabulary) -> Batch:
        """Hide tokens: of the predicted positions 80% become `<mask>`, 10% a random token, 10% stay (by default).

        Exactly round(rate * maskable) tokens of each row are predicted, and at least one where anything is maskable, so
        that batches cost the same; the 80% and 10% are probabilities, drawn for each token also inside words and
        n-grams, as in BERT's released code.
        """
        epochs = packed.epochs if self.dynamic else np.zeros_like(packed.epochs)
        states = noise.at("mlm", epochs, packed.sample_ids).bits()
        masking = masking_of(vocabulary, self.rate, self.mask_share, self.random_share)
        if self.units == "token":
            hidden = mask_tokens(packed.input_ids, states, masking)
        else:
            longest = self.max_ngram if self.units == "ngram" else 1
            lengths = cumulative(1.0 / np.arange(1, longest + 1))
            spans = Spans(lengths, max_tokens=packed.input_ids.shape[1], enclosed=False)
            hidden = mask_spans(packed.input_ids, states, masking, spans)
        input_ids, predicted_positions, targets = hidden
        inputs = {"input_ids": input_ids, "predicted_positions": predicted_positions, "targets": targets}
        inputs |= boundaries(packed) | nsp.inputs(self.pairs, packed)
        counts = {"mlm": len(targets), **nsp.counts(self.pairs, packed)}
        return Batch(inputs, counts, packed.sources_at(predicted_positions))

    def terms(self) -> Mapping[str, Term]:
        """Both terms have weight 1 (Devlin et al. 2019, appendix A.2: their losses are added)."""
        return {"mlm": Term(is_likelihood=True, decides=True), **nsp.terms(self.pairs)}

    def build_model(self, config: TransformerConfig, outside: OutsideModels) -> MaskedLanguageModel:
        """An encoder with the masked-LM head, and the head for pairs where they are predicted."""
        from models.language_models import MaskedLanguageModel

        return MaskedLanguageModel(config, pair=self.pairs)


def masking_of(vocabulary: Vocabulary, rate: float, mask_share: float, random_share: float) -> Masking:
    """The masking of a vocabulary's tokens; the shares as in `MaskedLM`."""
    return Masking(
        rate,
        mask_share,
        random_share,
        vocabulary["mask"],
        vocabulary.is_special,
        vocabulary.starts_word,
        vocabulary.ordinary,
    )


def cumulative(weights: np.ndarray) -> np.ndarray:
    """float64 cumulative probabilities in proportion to `weights`; the last is exactly 1."""
    sums = np.cumsum(weights / weights.sum())
    sums[-1] = 1.0
    return sums


@compiled_loop
def mask_tokens(
    input_ids: np.ndarray, states: np.ndarray, masking: Masking
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Hide single tokens.

    Args:
        input_ids: [batch, length] uint32.
        states: [batch] uint64 noise of each row.

    Returns:
        The ids that the network reads [batch, length], the ascending predicted positions in the flattened batch
        [predicted], and the original tokens there [predicted]; all int64.
    """
    length = input_ids.shape[1]
    positions = empty_positions(input_ids, masking)
    found = 0
    for row in range(len(input_ids)):
        chosen = choose_tokens(input_ids[row], states[row], masking)
        found = write_positions(chosen, row * length, positions, found)
    positions = positions[:found]
    corrupted, targets = hide_tokens(input_ids, positions, positions, states, masking)
    return corrupted, positions, targets


@compiled_loop
def mask_spans(
    input_ids: np.ndarray, states: np.ndarray, masking: Masking, spans: Spans
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Hide words or n-grams; arguments and results as in `mask_tokens`."""
    length = input_ids.shape[1]
    positions = empty_positions(input_ids, masking)
    anywhere = np.zeros(length + 1, dtype=np.bool_)
    found = 0
    for row in range(len(input_ids)):
        chosen = choose_spans(input_ids[row], anywhere, states[row], masking, spans)
        found = write_positions(chosen, row * length, positions, found)
    positions = positions[:found]
    corrupted, targets = hide_tokens(input_ids, positions, positions, states, masking)
    return corrupted, positions, targets
