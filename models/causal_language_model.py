"""The network of language modelling from left to right: GPT."""

from __future__ import annotations

from torch import Tensor, nn

from models.cache import DecoderCache
from models.config import TransformerConfig
from models.decoder import Decoder
from models.heads import VocabularyProjection
from models.losses import EACH


class CausalLanguageModel(nn.Module):
    """A decoder that predicts the next token (Radford et al. 2018, section 3.1).

    Raises:
        ValueError: `config.vocab_size` is not set.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.decoder = Decoder(config)
        if config.embedding_width != config.hidden_size:
            raise ValueError("a decoder predicts with its embeddings: leave embedding_size out")
        self.head = VocabularyProjection(config, bias=False)
        self.logit_scale = config.hidden_size**-0.5 if config.scale_logits else 1.0

    def forward(
        self,
        input_ids: Tensor,
        predicted_positions: Tensor,
        targets: Tensor,
        cu_seqlens: Tensor | None = None,
        prefix_lengths: Tensor | None = None,
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Loss at the predicted positions.

        Args:
            input_ids: [batch, length] int64.
            predicted_positions: [num_predicted] int64 indices into the flattened batch.
            targets: [num_predicted] int64: the tokens that follow there.
            cu_seqlens: [num_pieces + 1] int32 boundaries of packed pieces; None reads whole rows.
            prefix_lengths: [num_pieces] int32 tokens of each piece that are read both ways.

        Returns:
            Under `clm` the cross-entropy in nats, summed (float32 scalar), and the number of right predictions;
            beside this, the losses one by one (see `models.losses.EACH`).
        """
        predicted = self.decoder(
            input_ids, cu_seqlens=cu_seqlens, prefix_lengths=prefix_lengths, read=predicted_positions
        )
        scaled = predicted * self.logit_scale
        loss, correct, each = self.head.loss(scaled, self.decoder.embeddings.token_weight, targets)
        return {"clm": loss}, {"clm": correct, EACH: each}

    def logits(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        prefix_lengths: Tensor | None = None,
        cache: DecoderCache | None = None,
    ) -> Tensor:
        """[batch, length, vocab_size] scores for what follows each token; arguments as in `Decoder`."""
        hidden = self.decoder(
            input_ids,
            cu_seqlens=cu_seqlens,
            attention_mask=attention_mask,
            prefix_lengths=prefix_lengths,
            cache=cache,
        )
        return self.head(hidden * self.logit_scale, self.decoder.embeddings.token_weight)
