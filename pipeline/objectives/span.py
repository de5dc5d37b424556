"""SpanBERT: hide spans of whole words, predict them also from their two ends (Joshi et al. 2020, section 3).

- Span masking (section 3.1): the number of words of a span is drawn from a geometric distribution, p = 0.2, of at most
  10 words, so that its mean is 3.8; spans are drawn until 15% of the tokens are hidden. The paper shortens the last
  span; here it stays whole, and rows end as often under their 15% as above it. All tokens of a span are replaced
  alike: 80% of the spans by masks, 10% by random tokens, 10% not at all.
- Span boundary objective (section 3.2): each token of a span is predicted once more, from the tokens around the span
  and its place in it; see `models/span_boundary.py`.
- Single sequences, without pairs (section 3.3): the other formats are there for comparison.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

import numpy as np
from pydantic import Field

from pipeline.objectives.base import Batch, OutsideModels, Term, boundaries
from pipeline.objectives.kernels.masking import (
    Spans,
    choose_positions,
    hide_tokens,
)
from pipeline.objectives.mlm import MaskingObjective, cumulative, masking_of
from pipeline.objectives.vocabulary import Vocabulary
from pipeline.samples.noise import Noise
from pipeline.samples.packed import Packed

if TYPE_CHECKING:
    from models.config import TransformerConfig
    from models.span_boundary import SpanBoundaryLanguageModel


class SpanMasking(MaskingObjective):
    """SpanBERT's objective."""

    kind: Literal["span"] = "span"
    rate: float = Field(default=0.15, gt=0, lt=1)
    """Share of the maskable tokens of each sample that are predicted, on average; a row has one span at least."""
    geometric_p: float = Field(default=0.2, gt=0, lt=1)
    """Parameter of the distribution of span lengths: n words with a probability in proportion to (1 - p) ** n."""
    max_words: int = Field(default=10, ge=1, le=100)
    """Words of the longest span."""
    max_span_tokens: int = Field(default=30, ge=1)
    """Tokens of the longest span: the number of places that the boundary head knows. A span that would have more
    tokens at a place is put elsewhere. (The released command has 15 places, and predicts nothing beyond.)"""
    whole_words: bool = True
    """Whether spans are measured in words; False measures them in tokens."""
    mask_share: float = Field(default=0.8, ge=0, le=1)
    """Share of the spans that become `<mask>`s."""
    random_share: float = Field(default=0.1, ge=0, le=1)
    """Share of the spans that become random tokens; the rest stay as they are."""
    boundary: bool = True
    """Whether there is the span boundary objective; False is the paper's comparison with masking alone."""

    def corrupt(self, packed: Packed, noise: Noise, vocabulary: Vocabulary) -> Batch:
        """Hide spans of whole words. Where a piece is cut, its last word stays: nothing after it could enclose a
        span."""
        states = noise.at("span", packed.epochs, packed.sample_ids).bits()
        masking = masking_of(vocabulary, self.rate, self.mask_share, self.random_share)
        if not self.whole_words:
            masking = masking._replace(starts_word=np.ones_like(masking.starts_word))
        spans = Spans(span_lengths(self), self.max_span_tokens, enclosed=True)
        begins_piece = np.zeros(packed.input_ids.size + 1, dtype=bool)
        begins_piece[packed.cu_seqlens] = True
        positions = choose_positions(packed.input_ids, begins_piece, states, masking, spans)
        left, right = spans_around(positions)
        # The token before a span decides how all of its tokens are replaced.
        input_ids, targets = hide_tokens(packed.input_ids, positions, left, states, masking)
        inputs = {"input_ids": input_ids, "predicted_positions": positions, "targets": targets}
        counts = {"mlm": len(targets)}
        if self.boundary:
            inputs |= {"left_positions": left, "right_positions": right, "span_offsets": positions - left - 1}
            counts["sbo"] = len(targets)
        # Marked, not sorted: sorting takes three times as long as all other noise.
        is_read = np.zeros(packed.input_ids.shape, dtype=bool)
        is_read[:, 0] = bool(self.pairs)
        for name in (name for name in inputs if name.endswith("_positions")):
            is_read.reshape(-1)[inputs[name]] = True
        inputs["read_positions"] = np.flatnonzero(is_read)
        sources = packed.sources_at(positions)
        return self.with_pairs(Batch(inputs | boundaries(packed), counts, sources), packed)

    def terms(self) -> Mapping[str, Term]:
        """The sum of both losses (Joshi et al. 2020, equation 1)."""
        boundary = {"sbo": Term(is_likelihood=True)} if self.boundary else {}
        return {"mlm": Term(is_likelihood=True, decides=True), **boundary, **self.pair_term()}

    def build_model(self, config: TransformerConfig, outside: OutsideModels) -> SpanBoundaryLanguageModel:
        """An encoder with the masked-LM head and the span boundary head."""
        from models.span_boundary import SpanBoundaryLanguageModel

        places = self.max_span_tokens if self.boundary else None
        return SpanBoundaryLanguageModel(config, places, pair=self.pairs)


def span_lengths(settings: SpanMasking) -> np.ndarray:
    """Cumulative probabilities of spans of 1, 2, ... words: Geo(p), cut off at `max_words` and scaled to sum to 1."""
    return cumulative((1 - settings.geometric_p) ** np.arange(settings.max_words))


def spans_around(positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """[predicted] int64 positions of the tokens before and after the span that each of the ascending positions is in.

    Two spans never touch, so neighbours belong to one span.
    """
    begins = np.flatnonzero(np.diff(positions, prepend=-2) > 1)
    sizes = np.diff(begins, append=len(positions))
    first = positions[begins]
    return np.repeat(first - 1, sizes), np.repeat(first + sizes, sizes)
