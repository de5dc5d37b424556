"""Networks on top of a biLM: a label for a text, and a label for each word."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from models.elmo.config import ElmoConfig
from models.elmo.representations import ElmoRepresentations
from models.elmo.token_layer import DrawnLinear


class ElmoClassifier(ElmoRepresentations):
    """A bidirectional LSTM on the mixtures of words, its maximum and mean over them, and a linear layer.

    The biLM stays frozen unless configured otherwise, as in the experiments of Peters et al. 2018, section 4; the rest
    is a plain classifier, not the biattentive one of McCann et al. 2017 that the paper uses for sentiment.

    Args:
        hidden_size: units of the LSTM in each direction.
        settings: as of `ElmoRepresentations`; `dropout` also drops inputs of the linear layer.
    """

    def __init__(
        self, config: ElmoConfig, num_labels: int, *, hidden_size: int = 256, **settings: Any
    ) -> None:
        super().__init__(config, **settings)
        self.lstm = DrawnLSTM(config.representation_size, hidden_size)
        self.output = DrawnLinear(4 * hidden_size, num_labels)

    def forward(self, characters: Tensor, words: Tensor, cu_seqlens: Tensor) -> Tensor:
        """Score sentences; arguments as of `ElmoEncoder.forward`.

        Returns:
            [sentences, num_labels] logits; with one label, the predicted value.
        """
        mixed, present = super().forward(characters, words, cu_seqlens)
        # A sentence without words is read as one word that is zero.
        lengths = present.sum(-1).clamp_min(1)
        packed = pack_padded_sequence(mixed, lengths.cpu(), True, enforce_sorted=False)
        hidden, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
        beyond = torch.arange(hidden.shape[1], device=hidden.device) >= lengths[:, None]
        highest = hidden.masked_fill(beyond[:, :, None], -math.inf).amax(1)
        mean = hidden.sum(1) / lengths[:, None]
        return self.output(self.dropout(torch.cat([highest, mean], dim=-1)))


class DrawnLSTM(nn.LSTM):
    """One bidirectional LSTM layer, at first uniform after Glorot and Bengio 2010 and with a bias of 1 for the forget
    gate."""

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__(input_size, hidden_size, batch_first=True, bidirectional=True)

    def draw(self, name: str, shape: torch.Size, generator: torch.Generator) -> Tensor:
        """Initial weights. Of the two biases that PyTorch adds, the bias of the inputs begins at 1."""
        if name.startswith("bias"):
            bias = torch.zeros(shape)
            bias[shape[0] // 4 : shape[0] // 2] = float(name.startswith("bias_ih"))
            return bias
        return torch.empty(shape).uniform_(-1.0, 1.0, generator=generator) * math.sqrt(6.0 / sum(shape))


class ElmoTagger(ElmoRepresentations):
    """A linear layer on every word's mixture (Peters et al. 2018, section 5.3); arguments as of
    `ElmoRepresentations`."""

    def __init__(self, config: ElmoConfig, num_labels: int, **settings: Any) -> None:
        super().__init__(config, **settings)
        self.scores = DrawnLinear(config.representation_size, num_labels)

    def forward(self, characters: Tensor, words: Tensor, cu_seqlens: Tensor) -> Tensor:
        """Score the labels of every word; arguments as of `ElmoEncoder.forward`.

        Returns:
            [sentences, longest, num_labels] logits; those after shorter sentences have no meaning.
        """
        return self.scores(super().forward(characters, words, cu_seqlens)[0])
