"""What goes on top of an encoder: masked-token prediction and sequence classification."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.config import TransformerConfig


class VocabularyProjection(nn.Module):
    """Scores for every token of the vocabulary: W h + b.

    A tied projection owns only b and is handed W at every call. The two uses of W can then never come apart,
    neither on the meta device nor in a state dict, where W has one name.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        vocab_size = config.require_vocab_size()
        self.bias = nn.Parameter(torch.zeros(vocab_size))
        self.weight = (
            None if config.tie_embeddings else nn.Parameter(torch.zeros(vocab_size, config.hidden_size))
        )

    def forward(self, hidden: Tensor, embedding_weight: Tensor) -> Tensor:
        """[..., hidden] to [..., vocab_size]; `embedding_weight` [vocab_size, hidden] is W when tied."""
        return F.linear(hidden, embedding_weight if self.weight is None else self.weight, self.bias)


class MaskedLanguageModelHead(nn.Module):
    """Dense layer, GELU and LayerNorm before the vocabulary projection (Devlin et al. 2019, released code).

    The GELU is the exact one whatever `config.activation` says, as in every published RoBERTa.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.norm_eps)
        self.decoder = VocabularyProjection(config)

    def forward(self, hidden: Tensor, embedding_weight: Tensor) -> Tensor:
        """[..., hidden] to [..., vocab_size] logits; `embedding_weight` is the token embedding."""
        return self.decoder(self.norm(F.gelu(self.dense(hidden))), embedding_weight)


class ClassificationHead(nn.Module):
    """Dense layer with tanh between two dropouts, then one score per label (Liu et al. 2019, released code).

    With one label the score is the prediction of a regression.

    Raises:
        ValueError: `num_labels` is below 1.
    """

    def __init__(self, config: TransformerConfig, num_labels: int) -> None:
        super().__init__()
        if num_labels < 1:
            raise ValueError(f"num_labels must be at least 1 (1 is a regression), not {num_labels}")
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.output = nn.Linear(config.hidden_size, num_labels)
        self.dropout = config.dropout

    def forward(self, sequence: Tensor) -> Tensor:
        """[batch, hidden] representations of whole sequences to [batch, num_labels] logits."""
        sequence = F.dropout(sequence, self.dropout, self.training)
        sequence = torch.tanh(self.dense(sequence))
        return self.output(F.dropout(sequence, self.dropout, self.training))
