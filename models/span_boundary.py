"""SpanBERT's network: masked-token prediction, and the prediction of spans from their ends (Joshi et al. 2020)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.config import TransformerConfig
from models.functional import make_norm
from models.heads import MaskedLanguageModelHead, PairHead, VocabularyProjection
from models.layout import first_positions
from models.losses import EACH, CrossEntropy
from models.stacks import Encoder

PLACE_SIZE = 200
"""Width of the embedding of a token's place in its span, as in the released code."""


class SpanBoundaryHead(nn.Module):
    """Predicts token i of a span s..e from x_{s-1}, x_{e+1} and the place i - s + 1 (Joshi et al. 2020, section 3.2):

    h0 = [x_{s-1}; x_{e+1}; p_{i-s+1}], h1 = LayerNorm(GELU(W1 h0)), y = LayerNorm(GELU(W2 h1)), and a projection of y
    to the vocabulary by the token embedding.
    """

    def __init__(self, config: TransformerConfig, num_places: int) -> None:
        """`num_places` are the tokens of the longest span."""
        super().__init__()
        self.places = nn.Embedding(num_places, PLACE_SIZE)
        self.first = nn.Linear(2 * config.hidden_size + PLACE_SIZE, config.hidden_size)
        self.first_norm = make_norm(config)
        self.second = nn.Linear(config.hidden_size, config.embedding_width)
        self.second_norm = make_norm(config, config.embedding_width)
        self.decoder = VocabularyProjection(config)

    def loss(
        self,
        left: Tensor,
        right: Tensor,
        span_offsets: Tensor,
        embedding_weight: Tensor,
        targets: Tensor,
    ) -> CrossEntropy:
        """Cross-entropy of every token; see `summed_cross_entropy`.

        Args:
            left, right: [tokens, hidden] representations of the tokens before and after each token's span.
            span_offsets: [tokens] int64 place in the span, from 0.
            targets: [tokens] int64.
        """
        hidden = torch.cat((left, right, self.places(span_offsets)), -1)
        hidden = self.first_norm(F.gelu(self.first(hidden)))
        hidden = self.second_norm(F.gelu(self.second(hidden)))
        return self.decoder.loss(hidden, embedding_weight, targets)


class SpanBoundaryLanguageModel(nn.Module):
    """An encoder that predicts the tokens of spans twice: each from its own place, and from the ends of its span.

    Its state dict is a `MaskedLanguageModel`'s with `boundary_head` added.
    """

    def __init__(self, config: TransformerConfig, num_places: int | None, *, pair: str | None = None) -> None:
        """
        Args:
            num_places: tokens of the longest span; None for no boundary head.
            pair: as in `MaskedLanguageModel`.
        """
        super().__init__()
        self.config = config
        self.encoder = Encoder(config)
        self.head = MaskedLanguageModelHead(config)
        self.boundary_head = SpanBoundaryHead(config, num_places) if num_places else None
        self.pair = pair
        self.pair_head = PairHead(config) if pair else None

    def forward(
        self,
        input_ids: Tensor,
        predicted_positions: Tensor,
        targets: Tensor,
        read_positions: Tensor,
        left_positions: Tensor | None = None,
        right_positions: Tensor | None = None,
        span_offsets: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        segment_ids: Tensor | None = None,
        pair_labels: Tensor | None = None,
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Both losses (Joshi et al. 2020, equation 1), at the predicted positions.

        Other arguments and the result are as in `MaskedLanguageModel.forward`; terms are `mlm`, `sbo` and the pair's.

        Args:
            read_positions: [num_read] int64, ascending, all different: these, those below, and with pairs the first
                of every row.
            left_positions: [num_predicted] int64 indices of the token before each prediction's span.
            right_positions: [num_predicted] int64 indices of the token after it.
            span_offsets: [num_predicted] int64 place in the span, from 0.
        """
        hidden = self.encoder(input_ids, cu_seqlens=cu_seqlens, segment_ids=segment_ids, read=read_positions)

        def at(positions: Tensor) -> Tensor:
            return hidden.index_select(0, torch.searchsorted(read_positions, positions))

        weight, predicted = self.encoder.embeddings.token_weight, at(predicted_positions)
        losses, correct = {}, {}
        losses["mlm"], correct["mlm"], correct[EACH] = self.head.loss(predicted, weight, targets)
        if self.boundary_head is not None:
            assert left_positions is not None
            assert right_positions is not None
            assert span_offsets is not None
            losses["sbo"], correct["sbo"], _ = self.boundary_head.loss(
                at(left_positions), at(right_positions), span_offsets, weight, targets
            )
        if self.pair_head is not None and self.pair is not None and pair_labels is not None:
            losses[self.pair], correct[self.pair] = self.pair_head.loss(
                at(first_positions(input_ids)), pair_labels
            )
        return losses, correct
