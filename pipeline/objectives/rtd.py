"""Replaced-token detection: find the tokens that a small generator has put in (ELECTRA; Clark et al. 2020, section 2).

The objective replaces tokens as masked language modelling does, but all by masks. The generator's tokens are drawn in
the network, `models/electra.py`, because they depend on its weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import numpy as np
from pydantic import Field

from cluster.artefacts.errors import ConfigError
from pipeline.config.loading import Config
from pipeline.objectives.base import Batch, OutsideModels, Term
from pipeline.objectives.mlm import EncoderObjective, masked_batch, masking_of
from pipeline.objectives.vocabulary import Vocabulary
from pipeline.samples.noise import Noise
from pipeline.samples.packed import Packed

if TYPE_CHECKING:
    from models.config import TransformerConfig
    from models.electra import Electra


class GeneratorSize(Config):
    """Size of the generator, relative to the discriminator (Clark et al. 2020, section 3.2 and table 6)."""

    hidden_share: float = Field(default=0.25, gt=0, le=1)
    """Width of its layers and of their feed-forward blocks: 1/4 in ELECTRA small and large, 1/3 in base."""
    layers_share: float = Field(default=1.0, gt=0, le=1)
    """Number of its layers."""
    num_heads: int | None = Field(default=None, ge=1)
    """Its attention heads; null takes `hidden_share` of the discriminator's."""


class ReplacedTokenDetection(EncoderObjective):
    """ELECTRA's objective."""

    kind: Literal["rtd"] = "rtd"
    rate: float = Field(default=0.15, gt=0, lt=1)
    """Share of the maskable tokens of each sample that the generator predicts: 0.15 in ELECTRA small and base, 0.25 in
    large."""
    mask_share: float = Field(default=1.0, ge=0, le=1)
    """Share of these tokens that the generator reads as `<mask>`: all in the paper, 0.85 in the released code, where
    the rest stay as they are."""
    detection_weight: float = Field(default=50.0, gt=0)
    """Weight of the discriminator's loss (Clark et al. 2020, section 3.2 and table 6)."""
    generator: GeneratorSize = GeneratorSize()
    """The network that replaces tokens."""

    def corrupt(self, packed: Packed, noise: Noise, vocabulary: Vocabulary) -> Batch:
        """Put masks on round(rate * maskable) tokens of each row; all tokens but padding are judged."""
        states = noise.at("rtd", packed.epochs, packed.sample_ids).bits()
        masking = masking_of(vocabulary, self.rate, self.mask_share, random_share=0.0)
        batch = masked_batch(packed, states, masking)
        token_positions = np.flatnonzero(packed.input_ids != vocabulary["pad"])
        counts = {**batch.counts, "rtd": len(token_positions)}
        return Batch({**batch.inputs, "token_positions": token_positions}, counts, batch.sources)

    def terms(self) -> Mapping[str, Term]:
        """The generator's loss, and the discriminator's, which decides: the generator is thrown away."""
        return {"mlm": Term(is_likelihood=True), "rtd": Term(self.detection_weight, decides=True)}

    def build_model(self, config: TransformerConfig, outside: OutsideModels) -> Electra:
        """Generator and discriminator; `config` is the discriminator's.

        Raises:
            ConfigError: there is no generator of the wanted size.
        """
        from models.electra import Electra

        return Electra(config, generator_config(self.generator, config))

    def check_fit(self, config: TransformerConfig, vocabulary: Vocabulary, outside: OutsideModels) -> None:
        """Make sure that there is a generator of the wanted size."""
        generator_config(self.generator, config)


def generator_config(size: GeneratorSize, config: TransformerConfig) -> TransformerConfig:
    """The shape of the generator: the discriminator's, narrower, on embeddings of the same width."""
    heads = size.num_heads or max(1, round(config.num_heads * size.hidden_share))
    try:
        return replace(
            config,
            num_layers=max(1, round(config.num_layers * size.layers_share)),
            # The nearest width that the heads can share out.
            hidden_size=heads * max(1, round(config.hidden_size * size.hidden_share / heads)),
            num_heads=heads,
            intermediate_size=max(1, round(config.intermediate_size * size.hidden_share)),
            embedding_size=config.embedding_width,
        )
    except ValueError as error:
        raise ConfigError(
            f"There is no generator of the size in objective.generator: {error}.",
            next_step="choose another objective.generator.hidden_share or num_heads",
        ) from None
