"""The causal decoder: GPT, and the decoder of BART and T5."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor, nn

from models.cache import DecoderCache
from models.config import TransformerConfig
from models.embeddings import Embeddings
from models.encoder import position_limit
from models.layout import Layout, make_layout
from models.transformer import Transformer


class Decoder(nn.Module):
    """Embeddings and a stack of causal layers (Radford et al. 2018, section 3.1); with cross-attention in an
    encoder-decoder (Vaswani et al. 2017, section 3.1).

    Raises:
        ValueError: `config.vocab_size` is not set.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.cross = config.network == "encoder_decoder"
        self.embeddings = Embeddings(config, own_tokens=not self.cross)
        self.transformer = Transformer(config, config.decoder_layers, causal=True, cross=self.cross)
        self.first_position = 0
        """Position of the first token; a learned prefix may take the positions before it."""

    def new_cache(self) -> DecoderCache:
        """An empty cache for reading token after token."""
        return DecoderCache.empty(self.config.decoder_layers, cross=self.cross)

    def forward(
        self,
        input_ids: Tensor,
        cu_seqlens: Tensor | None = None,
        attention_mask: Tensor | None = None,
        prefix_lengths: Tensor | None = None,
        cache: DecoderCache | None = None,
        memory: Tensor | None = None,
        memory_layout: Layout | None = None,
        token_weight: Tensor | None = None,
        read: Tensor | None = None,
    ) -> Tensor:
        """Contextual representations of tokens, each from the tokens before it.

        Args:
            input_ids: [batch, length] int64; with a cache only the tokens that it does not hold.
            cu_seqlens: [num_pieces + 1] int32 boundaries of packed pieces.
            attention_mask: [batch, cached + length] bool or int, true (or 1) at tokens; padding may be on either side.
            prefix_lengths: [num_pieces], or [batch] where nothing is packed: tokens at the beginning of each piece that
                are read both ways (Raffel et al. 2020, section 3.2.1).
            cache: of the tokens before; grows by `length`.
            memory: [batch, memory length, hidden] from the encoder, of an encoder-decoder.
            memory_layout: the encoder's layout.
            token_weight: [vocab_size, hidden] token embedding that the encoder owns.
            read: as in `Encoder.forward`.

        Returns:
            [batch, length, hidden]; [read, hidden] with `read`.

        Raises:
            ValueError: a shape does not fit, both masks are given, or a sequence exceeds `max_positions`.
        """
        limit = position_limit(self.config)
        layout = make_layout(
            input_ids,
            cu_seqlens,
            attention_mask,
            max_positions=None if limit is None else limit - self.first_position,
            past=None if cache is None else cache.length,
        )
        if self.first_position:
            layout = replace(layout, position_ids=layout.position_ids + self.first_position)
        embedded = self.embeddings(input_ids, layout.position_ids, token_weight=token_weight)
        return self.transformer(embedded, layout, prefix_lengths, memory, memory_layout, cache, read)
