"""The network of masked language modelling."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from models.config import TransformerConfig
from models.encoder import Encoder
from models.heads import MaskedLanguageModelHead


class MaskedLanguageModel(nn.Module):
    """An encoder that predicts tokens at chosen positions (Devlin et al. 2019, section 3.1, task 1).

    Raises:
        ValueError: `config.vocab_size` is not set.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = Encoder(config)
        self.head = MaskedLanguageModelHead(config)

    def forward(
        self,
        input_ids: Tensor,
        predicted_positions: Tensor,
        targets: Tensor,
        cu_seqlens: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Loss at the predicted positions; no other position reaches the head.

        Args:
            input_ids: [batch, length] int64, already masked.
            predicted_positions: [num_predicted] int64 indices into the flattened batch; may be empty.
            targets: [num_predicted] int64 token ids that belong there.
            cu_seqlens: [num_pieces + 1] int32 boundaries of packed pieces; None attends to whole rows.

        Returns:
            The cross-entropy in nats, summed over the predicted tokens (float32 scalar), and the number of
            tokens that were predicted correctly (int64 scalar).
        """
        hidden = self.encoder(input_ids, cu_seqlens=cu_seqlens)
        predicted = hidden.flatten(0, 1).index_select(0, predicted_positions)
        # float32 because a sum over thousands of tokens loses its last digits in half precision.
        logits = self.head(predicted, self.encoder.embeddings.tokens.weight).float()
        loss = F.cross_entropy(logits, targets, reduction="sum")
        return loss, (logits.detach().argmax(-1) == targets).sum()

    def logits(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, cu_seqlens: Tensor | None = None
    ) -> Tensor:
        """[batch, length, vocab_size] scores for every token at every position; arguments as in `Encoder`."""
        hidden = self.encoder(input_ids, cu_seqlens=cu_seqlens, attention_mask=attention_mask)
        return self.head(hidden, self.encoder.embeddings.tokens.weight)
