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


def answer_metrics(answers: Sequence[Sequence[str]], predictions: Sequence[str]) -> dict[str, float]:
    """`exact_match`, the share of the predictions that equal one of their question's answers, and `f1`, the mean over
    questions of the overlap in words with the nearest answer; both in [0, 1].

    Args:
        answers: per question the texts that count as right, at least one.
        predictions: per question the text that was predicted.
    """
    return {"exact_match": exact_match(answers, predictions), "f1": f1(answers, predictions)}


def exact_match(answers: Sequence[Sequence[str]], predictions: Sequence[str]) -> float:
    """As in `answer_metrics`."""
    return _mean(exact_scores(answers, predictions))


def f1(answers: Sequence[Sequence[str]], predictions: Sequence[str]) -> float:
    """As in `answer_metrics`."""
    return _mean(best_of(overlap, answers, predictions))


def exact_scores(answers: Sequence[Sequence[str]], predictions: Sequence[str]) -> list[float]:
    """Per question 1.0 where the prediction equals an answer, otherwise 0.0."""
    return best_of(_equal, answers, predictions)


def _mean(scores: Sequence[float]) -> float:
    return float(np.mean(scores))


def best_of(
    compare: Callable[[list[str], list[str]], float],
    answers: Sequence[Sequence[str]],
    predictions: Sequence[str],
) -> list[float]:
    """Per question the best comparison (answer, prediction) of normalised words with one of its answers."""
    return [
        max(compare(normalised_words(right), words) for right in texts)
        for texts, words in zip(answers, map(normalised_words, predictions), strict=True)
    ]


def _equal(right: list[str], predicted: list[str]) -> float:
    return float(right == predicted)


def overlap(right: list[str], predicted: list[str]) -> float:
    """F1 of the common words, counted with repetitions; 0 without common words."""
    common = sum((Counter(right) & Counter(predicted)).values())
    if not common:
        return 0.0
    precision, recall = common / len(predicted), common / len(right)
    return 2 * precision * recall / (precision + recall)
