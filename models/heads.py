"""Heads on top of an encoder or decoder: token prediction, pairs of segments, sequence classification."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.config import ClassificationStyle, TransformerConfig
from models.functional import dropout, make_norm
from models.losses import CrossEntropy, summed_cross_entropy
from models.transformer import ACTIVATIONS


class VocabularyProjection(nn.Module):
    """Scores for every token of the vocabulary: W h + b.

    A tied projection owns only b and is handed W at every call. The two uses of W can then never come apart,
    neither on the meta device nor in a state dict, where W has one name.
    """

    def __init__(self, config: TransformerConfig, *, bias: bool = True) -> None:
        super().__init__()
        vocab_size = config.require_vocab_size()
        self.bias = nn.Parameter(torch.zeros(vocab_size)) if bias else None
        self.weight = (
            None if config.tie_embeddings else nn.Parameter(torch.zeros(vocab_size, config.embedding_width))
        )

    def forward(self, hidden: Tensor, embedding_weight: Tensor) -> Tensor:
        """[..., width] to [..., vocab_size]; `embedding_weight` [vocab_size, width] is W when tied."""
        return F.linear(hidden, self._weight(embedding_weight), self.bias)

    def loss(self, hidden: Tensor, embedding_weight: Tensor, targets: Tensor) -> CrossEntropy:
        """Cross-entropy of [tokens, width] against [tokens] targets; see `summed_cross_entropy`."""
        return summed_cross_entropy(hidden, self._weight(embedding_weight), self.bias, targets)

    def _weight(self, embedding_weight: Tensor) -> Tensor:
        return embedding_weight if self.weight is None else self.weight


class MaskedLanguageModelHead(nn.Module):
    """Dense layer, `config.prediction_activation` and LayerNorm before the vocabulary projection (Devlin et al. 2019,
    released code)."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.embedding_width, bias=config.biases)
        self.norm = make_norm(config, config.embedding_width)
        self.activation = ACTIVATIONS[config.prediction_activation]
        self.decoder = VocabularyProjection(config)

    def forward(self, hidden: Tensor, embedding_weight: Tensor) -> Tensor:
        """[..., hidden] to [..., vocab_size] logits; `embedding_weight` is the token embedding."""
        return self.decoder(self._transform(hidden), embedding_weight)

    def loss(self, hidden: Tensor, embedding_weight: Tensor, targets: Tensor) -> CrossEntropy:
        """Cross-entropy of [tokens, hidden] against [tokens] targets; see `summed_cross_entropy`."""
        return self.decoder.loss(self._transform(hidden), embedding_weight, targets)

    def _transform(self, hidden: Tensor) -> Tensor:
        return self.norm(self.activation(self.dense(hidden)))


class TokenTransform(nn.Module):
    """Dense layer, GELU and normalisation of each token, before ModernBERT's scores of tokens (Warner et al. 2024,
    released code)."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size, bias=config.biases)
        self.norm = make_norm(config)

    def forward(self, hidden: Tensor) -> Tensor:
        """[..., hidden] to [..., hidden]."""
        return self.norm(F.gelu(self.dense(hidden)))


class PairHead(nn.Module):
    """Is the second segment the one that follows? A pooled first token, two scores (Devlin et al. 2019, section 3.1,
    task 2; the pooler of the released code)."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.pooler = nn.Linear(config.hidden_size, config.hidden_size)
        self.output = nn.Linear(config.hidden_size, 2)

    def forward(self, first: Tensor) -> Tensor:
        """[batch, hidden] of the first tokens to [batch, 2] scores: 0 for "follows", 1 for "does not"."""
        return self.output(torch.tanh(self.pooler(first)))

    def loss(self, first: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """[batch, hidden] and [batch] labels to the summed cross-entropy and the number of right predictions."""
        scores = self(first).float()
        correct = (scores.detach().argmax(-1) == labels).sum()
        return F.cross_entropy(scores, labels, reduction="sum"), correct


@dataclass(frozen=True)
class ClassificationShape:
    """The layers between the first token and the scores of labels."""

    activation: Callable[[Tensor], Tensor]
    drop_input: bool
    """Whether dropout also applies to the first token."""
    norm: bool
    """Whether the activations are normalised."""


CLASSIFICATION_SHAPES: Mapping[ClassificationStyle, ClassificationShape] = {
    # Liu et al. 2019, released code. BERT's pooler is the same without the dropout of the input.
    "tanh": ClassificationShape(torch.tanh, drop_input=True, norm=False),
    # Clark et al. 2020, released code.
    "gelu": ClassificationShape(F.gelu, drop_input=True, norm=False),
    # Warner et al. 2024, released code.
    "gelu_norm": ClassificationShape(F.gelu, drop_input=False, norm=True),
    # Sanh et al. 2019, released code.
    "relu": ClassificationShape(F.relu, drop_input=False, norm=False),
}


class ClassificationHead(nn.Module):
    """Dense layer, activation and dropout, then one score per label; `config.classification_head` says which.

    With one label the score is the prediction of a regression.

    Args:
        pooled: whether the dense layer is a pooler, whose input is not dropped out; None takes BERT's for one, which is
            the encoder with segments and `tanh`.
    """

    def __init__(self, config: TransformerConfig, num_labels: int, *, pooled: bool | None = None) -> None:
        super().__init__()
        self.shape = CLASSIFICATION_SHAPES[config.classification_head]
        # Only the head that a network without biases was published with does without one.
        bias = config.biases or not self.shape.norm
        self.dense = nn.Linear(config.hidden_size, config.hidden_size, bias=bias)
        self.norm = make_norm(config) if self.shape.norm else nn.Identity()
        self.output = nn.Linear(config.hidden_size, num_labels)
        self.dropout = config.dropout
        if pooled is None:
            is_bert = config.network == "encoder" and config.num_segments > 0
            pooled = is_bert and config.classification_head == "tanh"
        self.drop_input = self.shape.drop_input and not pooled

    def forward(self, sequence: Tensor) -> Tensor:
        """[batch, hidden] representations of whole sequences to [batch, num_labels] logits."""
        sequence = dropout(sequence, self.dropout, self.training and self.drop_input)
        sequence = self.norm(self.shape.activation(self.dense(sequence)))
        return self.output(dropout(sequence, self.dropout, self.training))
