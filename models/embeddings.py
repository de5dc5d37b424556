"""Token, position and segment embeddings."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.config import TransformerConfig
from models.functional import dropout, make_norm
from models.positions import sinusoidal_embedding


class Embeddings(nn.Module):
    """Sum of token, position and segment embeddings, normalised, dropped out, projected (Devlin et al. 2019, section
    3, figure 2). Which of these there are is for the configuration to say.

    Raises:
        ValueError: `config.vocab_size` is not set.
    """

    def __init__(self, config: TransformerConfig, *, own_tokens: bool = True) -> None:
        """
        Args:
            own_tokens: False for the second stack of an encoder-decoder, which shares the first one's tokens.
        """
        super().__init__()
        width = config.embedding_width
        self.tokens = nn.Embedding(config.require_vocab_size(), width) if own_tokens else None
        self.positions = nn.Embedding(config.max_positions, width) if config.positions == "learned" else None
        self.segments = nn.Embedding(config.num_segments, width) if config.num_segments else None
        self.norm = make_norm(config, width) if config.embedding_norm else nn.Identity()
        self.projection = _projection(config)
        self.sinusoidal = config.positions == "sinusoidal"
        self.scale = math.sqrt(width) if config.scale_embeddings else 1.0
        self.dropout = config.dropout

    @property
    def token_weight(self) -> Tensor:
        """[vocab_size, embedding width]: the token embedding."""
        assert self.tokens is not None, "these embeddings share the tokens of another stack"
        return self.tokens.weight

    def forward(
        self,
        input_ids: Tensor,
        position_ids: Tensor,
        segment_ids: Tensor | None = None,
        token_weight: Tensor | None = None,
    ) -> Tensor:
        """Embed tokens.

        Args:
            input_ids: [batch, length] int64.
            position_ids: [batch, length] or [length] int64, each below `max_positions`.
            segment_ids: [batch, length] int64 below `num_segments`; None takes segment 0 everywhere.
            token_weight: [vocab_size, width] of the stack that owns the tokens; None takes its own.

        Returns:
            [batch, length, hidden].
        """
        return self.projection(self.unprojected(input_ids, position_ids, segment_ids, token_weight))

    def unprojected(
        self,
        input_ids: Tensor,
        position_ids: Tensor,
        segment_ids: Tensor | None = None,
        token_weight: Tensor | None = None,
    ) -> Tensor:
        """[batch, length, embedding width]: everything but the projection; arguments as in `forward`."""
        weight = self.token_weight if token_weight is None else token_weight
        embedded = F.embedding(input_ids, weight)
        if self.scale != 1.0:
            embedded = embedded * self.scale
        if self.positions is not None:
            embedded = embedded + self.positions(position_ids)
        elif self.sinusoidal:
            embedded = embedded + sinusoidal_embedding(position_ids, embedded.shape[-1]).to(embedded.dtype)
        if self.segments is not None:
            segments = torch.zeros_like(input_ids) if segment_ids is None else segment_ids
            embedded = embedded + self.segments(segments)
        return dropout(self.norm(embedded), self.dropout, self.training)


class SharedEmbeddings(nn.Module):
    """The embeddings of another network (tokens, positions, segments, norm), with a projection of its own.

    Only the projection is part of this module, so that shared parameters have one name, their owner's, in optimizers
    and state dicts.
    """

    def __init__(self, config: TransformerConfig, owner: Embeddings) -> None:
        """
        Args:
            config: of the network that shares them; its embeddings have the owner's width.
        """
        super().__init__()
        self.projection = _projection(config)
        # In a tuple, the module is hidden from `parameters` and `state_dict`.
        self._owner = (owner,)

    @property
    def token_weight(self) -> Tensor:
        """[vocab_size, embedding width]: the owner's token embedding."""
        return self._owner[0].token_weight

    def forward(self, input_ids: Tensor, position_ids: Tensor, segment_ids: Tensor | None = None) -> Tensor:
        """As `Embeddings.forward`."""
        return self.projection(self._owner[0].unprojected(input_ids, position_ids, segment_ids))


def _projection(config: TransformerConfig) -> nn.Module:
    """From the width of the embeddings to `hidden_size`, where they differ."""
    if config.embedding_width == config.hidden_size:
        return nn.Identity()
    return nn.Linear(config.embedding_width, config.hidden_size, bias=config.biases)
