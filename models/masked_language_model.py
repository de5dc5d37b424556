"""The network of masked language modelling, with or without the prediction of pairs."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from models.config import TransformerConfig
from models.encoder import Encoder
from models.heads import MaskedLanguageModelHead, PairHead
from models.layout import first_positions
from models.losses import EACH


class MaskedLanguageModel(nn.Module):
    """An encoder that predicts tokens at chosen positions, and whether two segments belong together (Devlin et al.
    2019, section 3.1, tasks 1 and 2).

    Raises:
        ValueError: `config.vocab_size` is not set.
    """

    def __init__(self, config: TransformerConfig, *, pair: str | None = None) -> None:
        """
        Args:
            pair: name of the loss term about pairs, `nsp` or `sop`; None for a network without that head.
        """
        super().__init__()
        self.config = config
        self.encoder = Encoder(config)
        self.head = MaskedLanguageModelHead(config)
        self.pair = pair
        self.pair_head = PairHead(config) if pair else None

    def forward(
        self,
        input_ids: Tensor,
        predicted_positions: Tensor,
        targets: Tensor,
        cu_seqlens: Tensor | None = None,
        segment_ids: Tensor | None = None,
        pair_labels: Tensor | None = None,
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Loss at the predicted positions; no other position reaches the head.

        Args:
            input_ids: [batch, length] int64, already masked.
            predicted_positions: [num_predicted] int64 indices into the flattened batch; may be empty.
            targets: [num_predicted] int64 token ids that belong there.
            cu_seqlens: [num_pieces + 1] int32 boundaries of packed pieces; None attends to whole rows.
            segment_ids: [batch, length] int64.
            pair_labels: [batch] int64: 0 if the row's second segment follows the first, 1 if not.

        Returns:
            By term (`mlm`, and the pair's) the cross-entropy in nats, summed (float32 scalar), and the number of
            right predictions (int64 scalar); beside these, the losses of `mlm` one by one (see `models.losses.EACH`).
        """
        read = predicted_positions
        if self.pair_head is not None:
            read = torch.cat((read, first_positions(input_ids)))
        hidden = self.encoder(input_ids, cu_seqlens=cu_seqlens, segment_ids=segment_ids, read=read)
        predicted, first = hidden.tensor_split([len(predicted_positions)])
        loss, correct, each = self.head.loss(predicted, self.encoder.embeddings.token_weight, targets)
        losses, right = {"mlm": loss}, {"mlm": correct, EACH: each}
        if self.pair_head is not None and self.pair is not None and pair_labels is not None:
            losses[self.pair], right[self.pair] = self.pair_head.loss(first, pair_labels)
        return losses, right

    def logits(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        segment_ids: Tensor | None = None,
    ) -> Tensor:
        """[batch, length, vocab_size] scores for every token at every position; arguments as in `Encoder`."""
        hidden = self.encoder(
            input_ids, cu_seqlens=cu_seqlens, attention_mask=attention_mask, segment_ids=segment_ids
        )
        return self.head(hidden, self.encoder.embeddings.token_weight)
