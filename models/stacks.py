"""The encoder, the decoder, and how a text is read with the stacks of any kind of network."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from models.attention import DecoderCache, LayerCache
from models.config import Network, TransformerConfig
from models.embeddings import Embeddings, SharedEmbeddings
from models.layout import Layout, Memory, last_positions, make_layout
from models.transformer import Transformer


class Encoder(nn.Module):
    """Embeddings and a stack of bidirectional layers (Devlin et al. 2019, section 3): BERT, RoBERTa, ELECTRA,
    ModernBERT, and the reading half of BART and T5.
    """

    def __init__(
        self, config: TransformerConfig, embeddings: Embeddings | SharedEmbeddings | None = None
    ) -> None:
        super().__init__()
        self.config = config
        self.embeddings = Embeddings(config) if embeddings is None else embeddings
        self.transformer = Transformer(config)

    def forward(
        self,
        input_ids: Tensor,
        cu_seqlens: Tensor | None = None,
        attention_mask: Tensor | None = None,
        segment_ids: Tensor | None = None,
        read: Tensor | None = None,
    ) -> Tensor:
        """Contextual representations of tokens. Without boundaries or a mask, every token attends to its whole row.

        Args:
            input_ids: [batch, length] int64.
            cu_seqlens: [num_pieces + 1] int32 boundaries of packed pieces in the flattened batch: attention stays
                inside each piece, and positions restart there.
            attention_mask: [batch, length] bool or int, true (or 1) at tokens and false (or 0) at padding, which is not
                attended to and does not count as a position. What comes out at padding has no meaning.
            segment_ids: [batch, length] int64; None takes segment 0, where there are segments.
            read: [read] int64 positions of tokens in the flattened batch; None reads all. The last layer computes
                little else.

        Returns:
            [batch, length, hidden]; [read, hidden] with `read`.

        Raises:
            ValueError: a shape does not fit, both masks are given, or a sequence exceeds `max_positions`.
        """
        layout = self._layout(input_ids, cu_seqlens, attention_mask)
        embedded = self.embeddings(input_ids, layout.position_ids, segment_ids)
        return self.transformer(embedded, layout, read=read)

    def memory(
        self, input_ids: Tensor, cu_seqlens: Tensor | None = None, attention_mask: Tensor | None = None
    ) -> Memory:
        """Read for a decoder; arguments as in `forward`."""
        layout = self._layout(input_ids, cu_seqlens, attention_mask)
        hidden = self.transformer(self.embeddings(input_ids, layout.position_ids), layout)
        return Memory(hidden, layout, self.embeddings.token_weight)

    def _layout(self, input_ids: Tensor, cu_seqlens: Tensor | None, attention_mask: Tensor | None) -> Layout:
        limit = position_limit(self.config)
        return make_layout(input_ids, cu_seqlens, attention_mask, max_positions=limit)


class Decoder(nn.Module):
    """Embeddings and a stack of causal layers (Radford et al. 2018, section 3.1); with cross-attention in an
    encoder-decoder (Vaswani et al. 2017, section 3.1).
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
        number = self.config.decoder_layers
        across = [LayerCache() for _ in range(number if self.cross else 0)]
        return DecoderCache([LayerCache() for _ in range(number)], across)

    def forward(
        self,
        input_ids: Tensor,
        cu_seqlens: Tensor | None = None,
        attention_mask: Tensor | None = None,
        prefix_lengths: Tensor | None = None,
        cache: DecoderCache | None = None,
        memory: Memory | None = None,
        read: Tensor | None = None,
    ) -> Tensor:
        """Contextual representations of tokens, each from the tokens before it; arguments beside these, result and
        errors are as in `Encoder.forward`.

        Args:
            input_ids: [batch, length] int64; with a cache only the tokens that it does not hold.
            attention_mask: [batch, cached + length]; padding may be on either side.
            prefix_lengths: [num_pieces], or [batch] where nothing is packed: tokens at the beginning of each piece that
                are read both ways (Raffel et al. 2020, section 3.2.1).
            cache: of the tokens before; grows by `length`.
            memory: from the encoder, of an encoder-decoder.
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
        weight = None if memory is None else memory.token_weight
        embedded = self.embeddings(input_ids, layout.position_ids, token_weight=weight)
        return self.transformer(embedded, layout, prefix_lengths, memory, cache, read)


def position_limit(config: TransformerConfig) -> int | None:
    """Tokens of the longest sequence; None where positions are not rows of a table and any length has a meaning."""
    return config.max_positions if config.positions == "learned" else None


STACKS: Mapping[Network, Mapping[str, Callable[[TransformerConfig], nn.Module]]] = {
    "encoder": {"encoder": Encoder},
    "decoder": {"decoder": Decoder},
    "encoder_decoder": {"encoder": Encoder, "decoder": Decoder},
}
"""Stacks of each kind of network, under their names in every network and checkpoint."""


def add_stacks(model: nn.Module, config: TransformerConfig) -> None:
    """Give a network the stacks of its kind, as `encoder` and `decoder`."""
    for name, build in STACKS[config.network].items():
        model.add_module(name, build(config))


def read_text(
    model: Any,
    input_ids: Tensor,
    attention_mask: Tensor | None = None,
    segment_ids: Tensor | None = None,
    decoder_input_ids: Tensor | None = None,
    read: Tensor | None = None,
) -> Tensor:
    """A representation of every token: of an encoder from both sides, of a decoder from the left, of an encoder-decoder
    what its decoder makes of the text that its encoder reads too (Lewis et al. 2020, sections 3.1 and 3.2).

    Args:
        model: a network with the stacks of `add_stacks` and a `config`.
        input_ids, attention_mask, segment_ids, read: as in `Encoder.forward`; rows of an encoder-decoder are padded on
            the right.
        decoder_input_ids: [batch, length] int64, for an encoder-decoder; None takes `shifted_right(input_ids, ...)`.

    Returns:
        [batch, length, hidden]; [read, hidden] with `read`.

    Raises:
        ValueError: segments or tokens of a decoder are given to a network that has no such part.
    """
    network = model.config.network
    if segment_ids is not None and network != "encoder":
        raise ValueError(f"segment_ids belong to an encoder; this network is of kind {network}")
    if decoder_input_ids is not None and network != "encoder_decoder":
        raise ValueError(f"decoder_input_ids belong to an encoder_decoder; this network is of kind {network}")
    if network == "encoder":
        return model.encoder(input_ids, attention_mask=attention_mask, segment_ids=segment_ids, read=read)
    if network == "decoder":
        return model.decoder(input_ids, attention_mask=attention_mask, read=read)
    if decoder_input_ids is None:
        decoder_input_ids = shifted_right(input_ids, attention_mask)
    memory = model.encoder.memory(input_ids, attention_mask=attention_mask)
    return model.decoder(decoder_input_ids, memory=memory, read=read)


def shifted_right(input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
    """The text as BART's decoder reads it: each token one place later, after the last token of the row, `</s>`.

    Args:
        input_ids: [batch, length] int64, padded on the right.
        attention_mask: as in `read_text`.

    Returns:
        [batch, length] int64; at padding it holds whatever lies there.
    """
    first = input_ids.flatten()[last_positions(input_ids, attention_mask)]
    return torch.cat([first[:, None], input_ids[:, :-1]], 1)
