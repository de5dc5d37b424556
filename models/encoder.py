"""The bidirectional encoder: BERT, RoBERTa, ELECTRA, ModernBERT, and the reading half of BART and T5."""

from __future__ import annotations

from torch import Tensor, nn

from models.config import TransformerConfig
from models.embeddings import Embeddings, SharedEmbeddings
from models.layout import Layout, make_layout
from models.transformer import Transformer


class Encoder(nn.Module):
    """Embeddings and a stack of bidirectional layers (Devlin et al. 2019, section 3).

    Raises:
        ValueError: `config.vocab_size` is not set.
    """

    def __init__(
        self, config: TransformerConfig, embeddings: Embeddings | SharedEmbeddings | None = None
    ) -> None:
        """
        Args:
            embeddings: the encoder's; None makes new ones.
        """
        super().__init__()
        self.config = config
        self.embeddings = Embeddings(config) if embeddings is None else embeddings
        self.transformer = Transformer(config)

    def forward(
        self,
        input_ids: Tensor,
        cu_seqlens: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        segment_ids: Tensor | None = None,
        read: Tensor | None = None,
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
            segment_ids: [batch, length] int64; None takes segment 0, where there are segments.
            read: [read] int64 positions of tokens in the flattened batch; None reads all. The last layer computes
                little else.

        Returns:
            [batch, length, hidden]; [read, hidden] with `read`.

        Raises:
            ValueError: a shape does not fit, both masks are given, a sequence exceeds `max_positions`, or the network
                does not read the given `position_ids`.
        """
        if position_ids is not None and self.config.positions == "relative_bias":
            raise ValueError(
                "positions: relative_bias compares places in a row and does not read position_ids; leave them out"
            )
        layout = self.layout(input_ids, cu_seqlens, attention_mask, position_ids)
        embedded = self.embeddings(input_ids, layout.position_ids, segment_ids)
        return self.transformer(embedded, layout, read=read)

    def layout(
        self,
        input_ids: Tensor,
        cu_seqlens: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
    ) -> Layout:
        """Places of the tokens; arguments as in `forward`."""
        limit = position_limit(self.config)
        return make_layout(
            input_ids, cu_seqlens, attention_mask, max_positions=limit, position_ids=position_ids
        )


def position_limit(config: TransformerConfig) -> int | None:
    """Tokens of the longest sequence; None where positions are not rows of a table and any length has a meaning."""
    return config.max_positions if config.positions == "learned" else None
