"""The stacks of any kind of network, and how a text is read with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from models.config import Network, TransformerConfig
from models.decoder import Decoder
from models.encoder import Encoder
from models.layout import last_positions

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
        input_ids: [batch, length] int64.
        attention_mask: [batch, length] bool or int, true (or 1) at tokens; None when nothing is padded. An
            encoder-decoder is padded on the right.
        segment_ids: [batch, length] int64, for an encoder; None takes segment 0, where there are segments.
        decoder_input_ids: [batch, length] int64, for an encoder-decoder; None takes `shifted_right(input_ids, ...)`.
        read: as in `Encoder.forward`.

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
    encoder = model.encoder
    layout = encoder.layout(input_ids, None, attention_mask)
    memory = encoder.transformer(encoder.embeddings(input_ids, layout.position_ids), layout)
    weight = encoder.embeddings.token_weight
    return model.decoder(
        decoder_input_ids, memory=memory, memory_layout=layout, token_weight=weight, read=read
    )


def shifted_right(
    input_ids: Tensor, attention_mask: Tensor | None = None, start: int | None = None
) -> Tensor:
    """The text as a decoder reads it: each token one place later, after the token that decoders start with.

    Args:
        input_ids: [batch, length] int64, padded on the right.
        attention_mask: as in `read_text`.
        start: id of the first token (T5: padding); None takes each row's last token, the `</s>` of BART.

    Returns:
        [batch, length] int64; at padding it holds whatever lies there.
    """
    if start is None:
        first = input_ids.flatten()[last_positions(input_ids, attention_mask)]
    else:
        first = torch.full_like(input_ids[:, 0], start)
    return torch.cat([first[:, None], input_ids[:, :-1]], 1)
