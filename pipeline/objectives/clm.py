"""The objectives of decoders.

Causal language modelling: every token predicts the next (GPT; Radford et al. 2018, section 3.1; 2019, section 2).

Prefix language modelling: a prefix is read both ways, the rest predicted from left to right (Raffel et al. 2020,
section 3.2.1 for the mask, 3.3.1 for the random split point; sequence-to-sequence LM in Dong et al. 2019, section 2.3).
"""

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


class PrefixLM(DecoderObjective):
    """Prefix language modelling."""

    kind: Literal["prefix_lm"] = "prefix_lm"

    def corrupt(self, packed: Packed, noise: Noise, vocabulary: Vocabulary) -> Batch:
        """Split each piece at a random point: any prefix that has a token and leaves one, all equally likely.

        The last token of the prefix predicts the first of the rest. A piece of one token is all prefix.
        """
        ids = packed.input_ids.reshape(-1)
        is_pad = ids == vocabulary["pad"]
        starts, stops = packed.cu_seqlens[:-1].astype(np.int64), packed.cu_seqlens[1:].astype(np.int64)
        pads_before = np.concatenate(([0], np.cumsum(is_pad)))
        lengths = stops - starts - (pads_before[stops] - pads_before[starts])
        rows, columns = np.divmod(starts, packed.input_ids.shape[1])
        draws = noise.at("prefix_lm", packed.epochs[rows], packed.sample_ids[rows], columns).uniform()
        more_than_one = (draws * np.maximum(lengths - 1, 1)).astype(np.int64)
        prefix_lengths = np.minimum(lengths, 1) + more_than_one
        # Marks at the last token of every prefix and before the last of the text, then everything in between.
        has_rest = lengths > 1
        change = np.zeros(len(ids) + 1, dtype=np.int8)
        change[(starts + prefix_lengths - 1)[has_rest]] += 1
        change[(starts + lengths - 1)[has_rest]] -= 1
        predicted = np.flatnonzero(np.cumsum(change[:-1]) > 0)
        more = {"cu_seqlens": packed.cu_seqlens, "prefix_lengths": prefix_lengths.astype(np.int32)}
        return predict_next(packed, predicted, more)


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
