"""Next-sentence prediction, and its successor, the prediction of sentence order: a second term of an objective.

A sample is a pair of segments `<s> A </s> B </s>`, and the first token predicts:

- `nsp`: does B follow A in the text, or is it random? (Devlin et al. 2019, section 3.1, task 2)
- `sop`: are A and B in the order of the text, or swapped? (Lan et al. 2020, section 3.1)

The relation is also the name of the loss term. Pairs are drawn in `pipeline/samples/formats/pairs.py`; the head is
`models.heads.PairHead`.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from pipeline.objectives.base import Term
from pipeline.samples.formats import PAIR_FORMATS, SINGLE_FORMATS
from pipeline.samples.packed import Packed, Reading, Relation


def reading(pairs: Relation | None, sequence_length: int) -> Reading:
    """Pairs of the wanted relation, or plain text without one."""
    if pairs is None:
        return Reading(SINGLE_FORMATS, sequence_length)
    return Reading(PAIR_FORMATS, sequence_length, relation=pairs)


def terms(pairs: Relation | None) -> Mapping[str, Term]:
    """One more term, or none."""
    return {} if pairs is None else {pairs: Term()}


def inputs(pairs: Relation | None, packed: Packed) -> dict[str, np.ndarray]:
    """`segment_ids` [batch, length] int64 and, where they are predicted, `pair_labels` [batch] int64; nothing where
    samples are no pairs."""
    found = {}
    if packed.segment_ids is not None:
        found["segment_ids"] = packed.segment_ids.astype(np.int64)
    if pairs is not None:
        if packed.pair_labels is None:
            raise ValueError(
                f"objective.pairs {pairs} cannot be predicted: the samples were read without pairs"
            )
        found["pair_labels"] = packed.pair_labels
    return found


def counts(pairs: Relation | None, packed: Packed) -> dict[str, int]:
    """One prediction for each row."""
    return {} if pairs is None else {pairs: len(packed.input_ids)}
