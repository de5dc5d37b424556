"""The compiled loop of `language_scores.py`; calling nothing of other files, it is never older than they are."""

from __future__ import annotations

import math

import numpy as np
from numba import njit


# Holding the interpreter's lock makes `counts`, which is zero between calls, safe to share.
@njit(cache=True)
def add_up(
    text: np.ndarray,
    next_state: np.ndarray,
    first_of_row: np.ndarray,
    feature_of: np.ndarray,
    weights: np.ndarray,
    weight_step: np.float32,
    prior: np.ndarray,
    counts: np.ndarray,
    scores: np.ndarray,
) -> int:
    """Fill in the naive-Bayes score of every language; returns the number of different features in the text.

    Args:
        text: [n] uint8 bytes.
        next_state: uint32 states of the automaton, by row and byte.
        first_of_row: [states] int32: where in `next_state` a state's row begins.
        feature_of: [states] int32: the feature that is complete in a state, or -1.
        weights: [features, languages] uint8: log probabilities, negated, in steps of `weight_step`.
        prior: [languages] float32 logarithms.
        counts: [features] int32 zeros, and zeros again afterwards.
        scores: [languages] float32.
    """
    found, num_found, state = np.empty(len(text), np.int32), 0, np.int64(0)
    for byte in text:
        state = np.int64(next_state[first_of_row[state] + np.int64(byte)])
        feature = feature_of[state]
        if feature >= 0:
            if counts[feature] == 0:
                found[num_found] = feature
                num_found += 1
            counts[feature] += 1
    scores[:] = prior
    for k in range(num_found):
        feature = found[k]
        factor = np.float32(-math.log1p(np.float32(counts[feature]))) * weight_step
        counts[feature] = 0
        for language in range(len(scores)):
            scores[language] += factor * np.float32(weights[feature, language])
    return num_found
