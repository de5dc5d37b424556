"""Exact match and F1 of answers, as SQuAD's evaluation defines them (Rajpurkar et al. 2016, section 6.1)."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalised_words(answer: str) -> list[str]:
    """The words that are compared: lower case, without ASCII punctuation and English articles."""
    return _ARTICLES.sub(" ", answer.lower().translate(_PUNCTUATION)).split()


def exact_match(answers: Sequence[Sequence[str]], predictions: Sequence[str]) -> float:
    """Share of the predictions that equal one of their question's answers.

    Args:
        answers: per question the texts that count as right, at least one.
        predictions: per question the text that was predicted.
    """
    return _mean_of_best(_equal, answers, predictions)


def f1(answers: Sequence[Sequence[str]], predictions: Sequence[str]) -> float:
    """Mean over questions of the overlap in words with the nearest answer, in [0, 1]; arguments as in `exact_match`."""
    return _mean_of_best(_overlap, answers, predictions)


def _mean_of_best(
    compare: Callable[[list[str], list[str]], float],
    answers: Sequence[Sequence[str]],
    predictions: Sequence[str],
) -> float:
    best = [
        max(compare(normalised_words(right), words) for right in texts)
        for texts, words in zip(answers, map(normalised_words, predictions), strict=True)
    ]
    return float(np.mean(best))


def _equal(right: list[str], predicted: list[str]) -> float:
    return float(right == predicted)


def _overlap(right: list[str], predicted: list[str]) -> float:
    """F1 of the common words, counted with repetitions; 0 without common words."""
    common = sum((Counter(right) & Counter(predicted)).values())
    if not common:
        return 0.0
    precision, recall = common / len(predicted), common / len(right)
    return 2 * precision * recall / (precision + recall)
