"""How many bands of how many values find documents of a given similarity."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

STEP = 0.001
"""Width of the intervals over which errors are integrated."""


def meeting_probability(similarity: np.ndarray | float, bands: int, rows: int) -> np.ndarray:
    """Probability that documents of this Jaccard similarity share a bucket: 1 - (1 - s^rows)^bands
    (Leskovec et al. 2014, section 3.4.2)."""
    return 1 - (1 - np.asarray(similarity) ** rows) ** bands


@lru_cache
def choose_bands(threshold: float, num_permutations: int) -> tuple[int, int]:
    """(bands, rows) within `num_permutations` whose S-curve is nearest to a step at `threshold`.

    Nearest means: the least sum of the area under the curve left of the step (false positives) and above it
    on the right (false negatives), both weighing the same (Zhu et al. 2016, section 5.3).
    """
    left = np.arange(STEP / 2, threshold, STEP)
    right = np.arange(threshold + STEP / 2, 1, STEP)
    shapes = [
        (bands, rows)
        for bands in range(1, num_permutations + 1)
        for rows in range(1, num_permutations // bands + 1)
    ]

    def error(shape: tuple[int, int]) -> float:
        return meeting_probability(left, *shape).sum() + (1 - meeting_probability(right, *shape)).sum()

    return min(shapes, key=error)
