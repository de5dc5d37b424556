"""The bidirectional encoder of BERT and RoBERTa."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from models.config import TransformerConfig
from models.embeddings import Embeddings
from models.segments import same_piece_mask, segments_from_cu_seqlens
from models.transformer import Transformer


class Encoder(nn.Module):
    """Embeddings and a stack of bidirectional layers (Devlin et al. 2019, section 3).

    Raises:
        ValueError: `config.vocab_size` is not set.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.embeddings = Embeddings(config)
        self.transformer = Transformer(config)

    @property
    def gradient_checkpointing(self) -> bool:
        """Whether layers are recomputed in the backward pass to save memory."""
        return self.transformer.gradient_checkpointing

    @gradient_checkpointing.setter
    def gradient_checkpointing(self, enabled: bool) -> None:
        self.transformer.gradient_checkpointing = enabled

    def forward(
        self,
        input_ids: Tensor,
        cu_seqlens: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
    ) -> Tensor:
        """Contextual representations of tokens.

        With `cu_seqlens`, rows are packed: attention stays inside each piece and positions restart there.
        With `attention_mask`, rows are padded: padding is not attended to and does not count as a position.
        With neither, every token attends to its whole row.

        Args:
            input_ids: [batch, length] int64.
            cu_seqlens: [num_pieces + 1] int32 boundaries of the pieces in the flattened batch.
            attention_mask: [batch, length] bool or int, true (or 1) at tokens and false (or 0) at padding.
                What comes out at padding has no meaning.
            position_ids: [batch, length] int64 to use instead of the positions described above.

        Returns:
            [batch, length, hidden].

        Raises:
            ValueError: a shape does not fit, both masks are given, or a sequence exceeds `max_positions`.
        """
        self._check_inputs(input_ids, cu_seqlens, attention_mask)
        batch, length = input_ids.shape
        mask = None
        if cu_seqlens is not None:
            limit = self.config.max_positions if position_ids is None else None
            piece_ids, positions = segments_from_cu_seqlens(cu_seqlens, batch, length, limit)
            mask = same_piece_mask(piece_ids)
        elif attention_mask is not None:
            present = attention_mask.bool()
            # Counted from the mask, so that padding on the left shifts positions too.
            positions = (present.cumsum(-1) - 1).clamp_min(0)
            mask = present[:, None, None, :]
        else:
            positions = torch.arange(length, device=input_ids.device)
        embedded = self.embeddings(input_ids, positions if position_ids is None else position_ids)
        return self.transformer(embedded, mask)

    def _check_inputs(
        self, input_ids: Tensor, cu_seqlens: Tensor | None, attention_mask: Tensor | None
    ) -> None:
        if input_ids.dim() != 2:
            raise ValueError(f"input_ids must have shape [batch, length], not {list(input_ids.shape)}")
        if cu_seqlens is not None and attention_mask is not None:
            raise ValueError("give cu_seqlens (packed rows) or attention_mask (padded rows), not both")
        if attention_mask is not None and attention_mask.shape != input_ids.shape:
            raise ValueError(
                f"attention_mask must have the shape of input_ids, {list(input_ids.shape)}, "
                f"not {list(attention_mask.shape)}"
            )
        # A packed row may be longer than any piece of it; the pieces are checked with their boundaries.
        if cu_seqlens is None and input_ids.shape[1] > self.config.max_positions:
            raise ValueError(
                f"a row has {input_ids.shape[1]} tokens, but the network knows {self.config.max_positions} "
                "positions; truncate the rows or raise max_positions"
            )
