"""Contextual calibration: what an answer is worth without a text (Zhao et al. 2021, section 5)."""

from __future__ import annotations

import numpy as np
from scipy.special import log_softmax

from pipeline.ask.prompting.prompter import Prompter

CONTENT_FREE = ("N/A", "", "[MASK]")
"""Texts without content, as in the paper's released code."""


def prior(prompter: Prompter, is_pair: bool, batch_tokens: int) -> np.ndarray:
    """float64 [labels]: the mean probability of each answer for texts without content, as shares of all answers. A
    masked language model is not given `[MASK]`, which would be a second place to fill."""
    contents = [text for text in CONTENT_FREE if prompter.network.kind != "masked" or text != "[MASK]"]
    scores = prompter.scores([(text, text if is_pair else None) for text in contents], batch_tokens)
    return np.exp(log_softmax(scores.astype(np.float64), axis=1)).mean(0)


def calibrated(scores: np.ndarray, probabilities: np.ndarray) -> np.ndarray:
    """float32 [texts, labels]: log-probabilities of answers, float32 [texts, labels], less the logarithms of their
    probabilities without content (W = diag(p)^-1, b = 0 in the paper)."""
    shares = log_softmax(scores.astype(np.float64), axis=1)
    return (shares - np.log(np.maximum(probabilities, 1e-12))).astype(np.float32)
