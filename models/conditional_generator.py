"""The network of fine-tuning for generation: an encoder-decoder trained on pairs of texts."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from models.config import TransformerConfig
from models.sequence_to_sequence import SequenceToSequence


class ConditionalGenerator(nn.Module):
    """An encoder-decoder as it is fine-tuned: on padded pairs of texts (Lewis et al. 2020, section 3.3).

    Raises:
        ValueError: `config.vocab_size` is not set, or the configuration is of another kind of network.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.network = SequenceToSequence(config)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        decoder_input_ids: Tensor,
        predicted_positions: Tensor,
    ) -> Tensor:
        """Scores for the next token; padding of the decoder, on the right, is behind everything that is predicted.

        Args:
            input_ids: [batch, length] int64, padded on the right.
            attention_mask: [batch, length] bool, true at tokens.
            decoder_input_ids: [batch, decoder length] int64, padded on the right.
            predicted_positions: [predicted] int64 positions in the flattened decoder batch.

        Returns:
            [predicted, vocab_size] logits.
        """
        memory = self.network.encode(input_ids, attention_mask)
        return self.network.project(self.network.decode(decoder_input_ids, memory, read=predicted_positions))


def smoothed_loss(logits: Tensor, targets: Tensor, label_smoothing: float) -> Tensor:
    """Cross-entropy against targets of which a share goes to all tokens alike (Szegedy et al. 2016, section 7); summed,
    float32 scalar in nats. `logits` [predicted, vocab_size], `targets` [predicted] int64."""
    return F.cross_entropy(logits.float(), targets, reduction="sum", label_smoothing=label_smoothing)
