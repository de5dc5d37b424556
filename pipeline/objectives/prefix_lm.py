"""Prefix language modelling: a prefix is read both ways, the rest predicted from left to right.

Raffel et al. 2020, section 3.2.1 (the mask) and 3.3.1 (the random split point); Dong et al. 2019, section 2.3, name it
sequence-to-sequence LM.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from pipeline.objectives.base import Batch
from pipeline.objectives.clm import DecoderObjective, predict_next
from pipeline.objectives.vocabulary import Vocabulary
from pipeline.samples.noise import Noise
from pipeline.samples.packed import Packed


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
