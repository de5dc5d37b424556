"""Deep contextualised word representations: a task's own mixture of the layers of a biLM, and the networks that give a
text or each word a label by it."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from models.elmo.config import ElmoConfig
from models.elmo.encoder import DrawnLinear, ElmoEncoder, pad_sentences


class ScalarMix(nn.Module):
    """gamma * sum_j softmax(s)_j h_j (Peters et al. 2018, equation 1).

    Args:
        num_layers: layers that are mixed, the token layer included.
        normalize: bring every layer of every word to mean 0 and variance 1 first (Ba et al. 2016; Peters et al. 2018,
            section 3.2). The released code takes mean and variance over all words of a batch; here a word does not
            depend on its batch.
        l2: lambda of section 3.3. A large one keeps the mixture close to an average, a small one lets it move.
    """

    def __init__(self, num_layers: int, *, normalize: bool = False, l2: float = 0.0) -> None:
        super().__init__()
        self.normalize = normalize
        self.l2 = l2
        self.scores = nn.Parameter(torch.zeros(num_layers))
        self.gamma = nn.Parameter(torch.ones(()))

    def forward(self, layers: Tensor) -> Tensor:
        """[num_layers, ..., width] to [..., width].

        Raises:
            ValueError: the number of layers does not fit.
        """
        if len(layers) != len(self.scores):
            raise ValueError(f"the mixture is of {len(self.scores)} layers, but {len(layers)} were given")
        if self.normalize:
            layers = F.layer_norm(layers, layers.shape[-1:], eps=1e-12)
        shares = self.scores.softmax(0)
        return self.gamma * sum(share * layer for share, layer in zip(shares, layers, strict=True))

    def penalty(self) -> Tensor:
        """l2 times the squared length of s: a scalar to add to the loss of a batch (section 3.3)."""
        return self.l2 * self.scores.square().sum()

    def draw(self, name: str, shape: torch.Size, generator: torch.Generator) -> Tensor:
        """Initial weights: all layers alike, gamma 1."""
        return torch.ones(shape) if name == "gamma" else torch.zeros(shape)


class ElmoRepresentations(nn.Module):
    """A biLM, a mixture of its layers, and dropout: word vectors for a task, instead of its own or beside them
    (Peters et al. 2018, section 3.3).

    Args:
        frozen: leave the biLM as it is; otherwise it is trained with the task.
        dropout: probability of dropping elements of the representations.
    """

    def __init__(
        self,
        config: ElmoConfig,
        *,
        frozen: bool = True,
        normalize: bool = False,
        l2: float = 0.001,
        dropout: float = 0.5,
    ) -> None:
        super().__init__()
        self.config = config
        self.encoder = ElmoEncoder(config, frozen=frozen)
        self.mix = ScalarMix(config.num_layers + 1, normalize=normalize, l2=l2)
        self.dropout = nn.Dropout(dropout)

    def forward(self, characters: Tensor, words: Tensor, cu_seqlens: Tensor) -> tuple[Tensor, Tensor]:
        """Represent sentences; arguments as of `ElmoEncoder.forward`, made by `read_sentences`.

        Returns:
            [sentences, longest, 2 x projection_size] with zeros after shorter sentences, and [sentences, longest]
            bool, true at words.
        """
        mixed = self.mix(self.encoder(characters, words, cu_seqlens))
        padded, present = pad_sentences(mixed[None], cu_seqlens)
        return self.dropout(padded[0]), present

    def penalty(self) -> Tensor:
        """The mixture's penalty: a scalar to add to the loss of a batch."""
        return self.mix.penalty()


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
