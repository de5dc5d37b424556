"""Tagging the words of sentences on top of a biLM."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from models.elmo.config import ElmoConfig
from models.elmo.representations import ElmoRepresentations
from models.elmo.token_layer import DrawnLinear


class ElmoTagger(ElmoRepresentations):
    """A linear layer on every word's mixture (Peters et al. 2018, section 5.3); arguments as of
    `ElmoRepresentations`."""

    def __init__(self, config: ElmoConfig, num_labels: int, **settings: Any) -> None:
        super().__init__(config, **settings)
        self.scores = DrawnLinear(config.representation_size, num_labels)

    def forward(self, characters: Tensor, words: Tensor, cu_seqlens: Tensor) -> Tensor:
        """Score the labels of every word; arguments as of `ElmoEncoder.forward`.

        Returns:
            [sentences, longest, num_labels] logits; those behind shorter sentences have no meaning.
        """
        return self.scores(super().forward(characters, words, cu_seqlens)[0])
