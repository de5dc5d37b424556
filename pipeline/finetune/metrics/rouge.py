"""ROUGE-1, ROUGE-2 and ROUGE-L of summaries (Lin 2004), as `rouge-score` computes them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

ROUGE_NAMES = {"rouge1": "rouge1", "rouge2": "rouge2", "rouge_l": "rougeL"}
"""Our names of the metrics to the names in `rouge-score`."""


def rouge(references: Sequence[str], predictions: Sequence[str]) -> dict[str, float]:
    """Mean F-measure over texts, in [0, 1], by `ROUGE_NAMES`.

    Words are stemmed (Porter), as for the published scores of XSum. ROUGE-L takes each text as one sequence.
    """
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer(list(ROUGE_NAMES.values()), use_stemmer=True)
    found = [scorer.score(right, written) for right, written in zip(references, predictions, strict=True)]
    return {
        ours: float(np.mean([scores[theirs].fmeasure for scores in found]))
        for ours, theirs in ROUGE_NAMES.items()
    }
