"""Masked language modelling: predict the hidden 15% from both sides (Devlin et al. 2019, section 3.1).

`units` says which tokens are hidden together:

- `token`: each token by itself (Devlin et al. 2019; Liu et al. 2019).
- `word`: all tokens of a word, as in the whole-word masking of BERT's released code.
- `ngram`: up to `max_ngram` neighbouring words, n of them with a probability in proportion to 1/n (Lan et al. 2020,
  section 3.1). N-grams are drawn anywhere in the text, not from PMI's list of collocations (Levine et al. 2021).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from pipeline.objectives.base import Batch, Objective, OutsideModels, Term, boundaries
from pipeline.objectives.kernels.masking import (
    Masking,
    Spans,
    choose_positions,
    hide_tokens,
)
from pipeline.objectives.vocabulary import Vocabulary
from pipeline.samples.formats import PAIR_FORMATS, SINGLE_FORMATS
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


class MaskingObjective(EncoderObjective):
    """Hides tokens, and may also predict how the segments of a pair `<s> A </s> B </s>` belong together.

    The first token of the pair predicts:

    - `nsp`: does B follow A in the text, or is it random? (Devlin et al. 2019, section 3.1, task 2)
    - `sop`: are A and B in the order of the text, or swapped? (Lan et al. 2020, section 3.1)

    The relation is also the name of the loss term. Pairs are drawn in `pipeline/samples/formats/pairs.py`; the head is
    `models.heads.PairHead`.
    """

    rate: float
    mask_share: float
    random_share: float
    pairs: Relation | None = None
    """Also predict how the two segments of a pair belong together: next or random (`nsp`), in order or swapped
    (`sop`). null reads plain text."""

    @model_validator(mode="after")
    def _shares_fit(self) -> Self:
        if self.mask_share + self.random_share > 1:
            raise ValueError("mask_share + random_share must not exceed 1")
        return self

    def reading(self, sequence_length: int) -> Reading:
        """Any text, contiguous by default; pairs of the wanted relation, where it is predicted."""
        formats = SINGLE_FORMATS if self.pairs is None else PAIR_FORMATS
        return Reading(formats, sequence_length, relation=self.pairs)

    def pair_term(self) -> Mapping[str, Term]:
        """The term of the relation, if it is predicted."""
        return {} if self.pairs is None else {self.pairs: Term()}

    def with_pairs(self, batch: Batch, packed: Packed) -> Batch:
        """A batch with `segment_ids` [batch, length] and `pair_labels` [batch], int64, and a prediction for each row;
        as it is where no relation is predicted."""
        if self.pairs is None:
            return batch
        if packed.pair_labels is None or packed.segment_ids is None:
            raise ValueError(
                f"objective.pairs {self.pairs} cannot be predicted: the samples were read without pairs"
            )
        more = {"segment_ids": packed.segment_ids.astype(np.int64), "pair_labels": packed.pair_labels}
        counts = {**batch.counts, self.pairs: len(packed.input_ids)}
        return Batch({**batch.inputs, **more}, counts, batch.sources)


class MaskedLM(MaskingObjective):
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

    def corrupt(self, packed: Packed, noise: Noise, vocabulary: Vocabulary) -> Batch:
        """Hide tokens: of the predicted positions 80% become `<mask>`, 10% a random token, 10% stay (by default).

        Exactly round(rate * maskable) tokens of each row are predicted, and at least one where anything is maskable, so
        that batches cost the same; the 80% and 10% are probabilities, drawn for each token also inside words and
        n-grams, as in BERT's released code.
        """
        epochs = packed.epochs if self.dynamic else np.zeros_like(packed.epochs)
        states = noise.at("mlm", epochs, packed.sample_ids).bits()
        masking = masking_of(vocabulary, self.rate, self.mask_share, self.random_share)
        spans = None
        if self.units != "token":
            longest = self.max_ngram if self.units == "ngram" else 1
            lengths = cumulative(1.0 / np.arange(1, longest + 1))
            spans = Spans(lengths, max_tokens=packed.input_ids.shape[1], enclosed=False)
        return self.with_pairs(masked_batch(packed, states, masking, spans), packed)

    def terms(self) -> Mapping[str, Term]:
        """Both terms have weight 1 (Devlin et al. 2019, appendix A.2: their losses are added)."""
        return {"mlm": Term(is_likelihood=True, decides=True), **self.pair_term()}

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


def masked_batch(packed: Packed, states: np.ndarray, masking: Masking, spans: Spans | None = None) -> Batch:
    """The batch of the term `mlm`, where words or n-grams are hidden, or single tokens without `spans`."""
    anywhere = np.zeros(0, dtype=bool)
    positions = choose_positions(packed.input_ids, anywhere, states, masking, spans)
    input_ids, targets = hide_tokens(packed.input_ids, positions, positions, states, masking)
    inputs = {"input_ids": input_ids, "predicted_positions": positions, "targets": targets}
    sources = packed.sources_at(positions)
    return Batch({**inputs, **boundaries(packed)}, {"mlm": len(targets)}, sources)
