"""The compiled loops of `language_scores.py`; calling nothing of other files, they are never older than they are."""

from __future__ import annotations

import math

import numpy as np

from cluster.compiled_loop import compiled_loop

LANES = 16
"""Rows of weights are padded to a multiple of so many languages, which processors add up at once."""
PARTS = 8
"""Parts of a text that are read at a time."""
OVERLAP = 8
"""Bytes after which the automaton is in the same state wherever it began: no feature is longer."""
_CACHE_LINE = 64


@compiled_loop
def count_factors(counts: int, weight_step: np.float32) -> np.ndarray:
    """[counts] float32: by how often a feature occurs, the number that its weights are multiplied by."""
    factors = np.empty(counts, np.float32)
    for count in range(counts):
        factors[count] = np.float32(-math.log1p(np.float32(count))) * weight_step
    return factors


@compiled_loop
def walk(
    text: np.ndarray,
    next_state: np.ndarray,
    first_of_row: np.ndarray,
    feature_of: np.ndarray,
    features: np.ndarray,
) -> None:
    """Fill in the feature that ends at each byte of a text, or -1.

    Several parts of the text are read at a time, because every step waits for a look-up in a table that is larger than
    the caches.

    Args:
        text: [n] uint8 bytes.
        next_state: uint32 states of the automaton, by row and byte.
        first_of_row: [states] int32: where in `next_state` a state's row begins.
        feature_of: [states] int32: the feature that is complete in a state, or -1.
        features: [n] int32.
    """
    size = len(text) // PARTS
    states = np.zeros(PARTS, np.int64)
    for step in range(-OVERLAP if size > OVERLAP else 0, size if size > OVERLAP else 0):
        for part in range(PARTS):
            place = part * size + step
            if place >= 0:
                states[part] = next_state[first_of_row[states[part]] + np.int64(text[place])]
                if step >= 0:
                    features[place] = feature_of[states[part]]
    state = states[PARTS - 1]
    for place in range(PARTS * size if size > OVERLAP else 0, len(text)):
        state = np.int64(next_state[first_of_row[state] + np.int64(text[place])])
        features[place] = feature_of[state]


@compiled_loop
def add_up(
    text: np.ndarray,
    next_state: np.ndarray,
    first_of_row: np.ndarray,
    feature_of: np.ndarray,
    weights: np.ndarray,
    weight_step: np.float32,
    factors: np.ndarray,
    counts: np.ndarray,
    scores: np.ndarray,
) -> int:
    """Add the naive-Bayes weights of a text to the score of every language; returns the number of different features.

    The sums are taken in the order in which features occur first, whose rounding tests and corpora have seen.

    Args:
        text, next_state, first_of_row, feature_of: as `walk` has them.
        weights: [features, languages] uint8: log probabilities, negated, in steps of `weight_step`.
        factors: float32 that `count_factors` gives.
        counts: [features] int32 zeros, and zeros again afterwards; no other thread may use them meanwhile.
        scores: [languages] float32.
    """
    features = np.empty(len(text), np.int32)
    walk(text, next_state, first_of_row, feature_of, features)
    num_found = touched = np.int64(0)
    for i in range(len(features)):
        feature = features[i]
        if feature >= 0:
            if counts[feature] == 0:
                features[num_found] = feature
                num_found += 1
                # Asks for the weights long before they are needed.
                for first in range(0, weights.shape[1], _CACHE_LINE):
                    touched += weights[feature, first]
            counts[feature] += 1
    for k in range(num_found):
        feature, count = features[k], counts[features[k]]
        factor = (
            factors[count]
            if count < len(factors)
            else np.float32(-math.log1p(np.float32(count))) * weight_step
        )
        counts[feature] = 0
        own = weights[feature]
        for language in range(len(scores)):
            scores[language] += factor * np.float32(own[language])
    return int(num_found) if touched >= 0 else -1
