"""Causal language modelling: every token predicts the next (GPT; Radford et al. 2018, section 3.1; 2019, section 2)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

import numpy as np

from pipeline.objectives.base import Batch, Objective, OutsideModels, Term, boundaries
from pipeline.objectives.vocabulary import Vocabulary
from pipeline.samples.noise import Noise
from pipeline.samples.packed import Packed

if TYPE_CHECKING:
    from models.config import TransformerConfig
    from models.language_models import CausalLanguageModel


class DecoderObjective(Objective):
    """An objective of decoders, which predict the next token."""

    NETWORKS = ("decoder",)

    def terms(self) -> Mapping[str, Term]:
        """One term."""
        return {"clm": Term(is_likelihood=True)}

    def build_model(self, config: TransformerConfig, outside: OutsideModels) -> CausalLanguageModel:
        """A decoder with its vocabulary projection."""
        from models.language_models import CausalLanguageModel

        return CausalLanguageModel(config)


class CausalLM(DecoderObjective):
    """Causal language modelling."""

    kind: Literal["clm"] = "clm"

    def corrupt(self, packed: Packed, noise: Noise, vocabulary: Vocabulary) -> Batch:
        """Nothing is corrupted: each token's target is the next of its piece, `</s>` included; padding is no target."""
        ids = packed.input_ids.reshape(-1)
        has_next = np.append(ids[1:] != vocabulary["pad"], False)
        has_next[packed.cu_seqlens[1:] - 1] = False
        predicted = np.flatnonzero(has_next)
        return predict_next(packed, predicted, boundaries(packed))


def predict_next(packed: Packed, predicted: np.ndarray, more: Mapping[str, np.ndarray]) -> Batch:
    """The batch whose tokens at some ascending places of the flattened rows predict the next ones.

    Args:
        more: arguments of the network besides.
    """
    targets = packed.input_ids.reshape(-1)[predicted + 1].astype(np.int64)
    inputs = {
        "input_ids": packed.input_ids.astype(np.int64),
        "predicted_positions": predicted,
        "targets": targets,
    }
    return Batch({**inputs, **more}, {"clm": len(predicted)}, packed.sources_at(predicted, ahead=1))
