"""How many bands of how many values find documents of a given similarity."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

STEP = 0.001
"""Width of the intervals over which the curve is integrated."""
SHOWN = (0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95)
"""Similarities at which the curve is reported."""


def meeting_probability(similarity: np.ndarray | float, bands: int, rows: int) -> np.ndarray:
    """Probability that documents of this Jaccard similarity share a bucket: 1 - (1 - s^rows)^bands
    (Leskovec et al. 2014, section 3.4.2)."""
    return 1 - (1 - np.asarray(similarity) ** rows) ** bands


@lru_cache
def choose_bands(threshold: float, recall: float, num_permutations: int) -> tuple[int, int]:
    """(bands, rows) that find pairs of similarity `threshold` with probability `recall`, and the fewest below it.

    Of all shapes with at most `num_permutations` values in a signature that find enough, the one with the least area
    under the S-curve left of `threshold`. More values make a steeper curve.

    Raises:
        ValueError: no shape finds enough; the message says how many values would do.
    """
    shapes = []
    for rows in range(1, num_permutations + 1):
        bands = _bands_needed(threshold, recall, rows)
        if bands * rows <= num_permutations:
            shapes.append((bands, rows))
    if not shapes:
        raise ValueError(
            f"num_permutations = {num_permutations} cannot find {recall:g} of the pairs of similarity {threshold:g};"
            f" {_bands_needed(threshold, recall, 1)} can"
        )
    return min(shapes, key=lambda shape: _areas(threshold, *shape)[0])


def describe_bands(threshold: float, bands: int, rows: int, *, verified: bool) -> dict[str, Any]:
    """The recall expected of a shape of bands, for people and for `--json`.

    Keys: `threshold`, `bands`, `rows`, `verified`; `found`: the probability that a pair is found, by its similarity;
    `false_positives`: the share of found pairs that are below the threshold, if all similarities were equally frequent.

    Args:
        verified: whether pairs below the threshold are taken out again.
    """
    below, above = _areas(threshold, bands, rows)
    found = {
        f"{s:g}": 0.0 if verified and s < threshold else round(float(meeting_probability(s, bands, rows)), 4)
        for s in sorted({*SHOWN, threshold})
    }
    return {
        "threshold": threshold,
        "bands": bands,
        "rows": rows,
        "verified": verified,
        "found": found,
        "false_positives": 0.0 if verified else round(below / (below + above), 4),
    }


def _bands_needed(threshold: float, recall: float, rows: int) -> int:
    """The fewest bands of `rows` values that find pairs of similarity `threshold` with probability `recall`."""
    band = threshold**rows
    # Where a band hardly ever agrees, 1 - band is 1 in floating point.
    bands = math.log1p(-recall) / math.log1p(-band) if band > 1e-12 else math.inf
    return math.ceil(min(bands, 1e12))


def _areas(threshold: float, bands: int, rows: int) -> tuple[float, float]:
    """Areas under the S-curve left and right of the threshold."""
    left = meeting_probability(np.arange(STEP / 2, threshold, STEP), bands, rows)
    right = meeting_probability(np.arange(threshold + STEP / 2, 1, STEP), bands, rows)
    return float(left.sum() * STEP), float(right.sum() * STEP)
