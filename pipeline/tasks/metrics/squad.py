"""Exact match and F1 of answers, as the evaluation scripts of SQuAD 1.1 (Rajpurkar et al. 2016, section 6.1) and of
SQuAD 2.0 (Rajpurkar et al. 2018, section 5), where a question may have no answer, define them.

2.0 differs: answers that normalisation makes empty do not count, a question without other answers is
answered rightly by an empty text alone, and an empty text has F1 1 with an empty answer.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

UNANSWERABLE_METRICS = (
    *("f1", "exact_match", "has_answer_f1", "has_answer_exact", "no_answer_f1", "no_answer_exact"),
    *("best_f1", "best_f1_thresh", "best_exact", "best_exact_thresh"),
)
"""Names of the scores of SQuAD 2.0, as shares of 1; the script calls some HasAns_f1, HasAns_exact and so on."""
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
    return {
        "exact_match": float(np.mean(exact_scores(answers, predictions))),
        "f1": float(np.mean(best_of(overlap, answers, predictions))),
    }


def exact_scores(answers: Sequence[Sequence[str]], predictions: Sequence[str]) -> list[float]:
    """Per question 1.0 where the prediction equals an answer, otherwise 0.0."""
    return best_of(lambda right, predicted: float(right == predicted), answers, predictions)


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


def overlap(right: list[str], predicted: list[str]) -> float:
    """F1 of the common words, counted with repetitions; 0 without common words."""
    common = sum((Counter(right) & Counter(predicted)).values())
    if not common:
        return 0.0
    precision, recall = common / len(predicted), common / len(right)
    return 2 * precision * recall / (precision + recall)


def unanswerable_metrics(
    answers: Sequence[Sequence[str]], predictions: Sequence[str], no_answer: np.ndarray
) -> dict[str, float]:
    """All of `UNANSWERABLE_METRICS`; the scores of questions with, and of those without, an answer are 0 where there
    are none.

    Args:
        answers: per question the texts that count as right; none where there is no answer.
        predictions: per question the predicted text, empty for no answer.
        no_answer: float64 [questions], the probability of each question to have no answer.
    """
    has_answer = np.array([bool(texts) for texts in answers])
    exact, f1 = question_scores(answers, predictions)
    is_empty = np.array([not text for text in predictions])
    found = {"f1": _mean(f1), "exact_match": _mean(exact)}
    for name, chosen in (("has_answer", has_answer), ("no_answer", ~has_answer)):
        found |= {f"{name}_f1": _mean(f1[chosen]), f"{name}_exact": _mean(exact[chosen])}
    for name, scores in (("f1", f1), ("exact", exact)):
        best, threshold = best_threshold(scores, has_answer, is_empty, no_answer)
        found |= {f"best_{name}": best, f"best_{name}_thresh": threshold}
    return found


def question_scores(
    answers: Sequence[Sequence[str]], predictions: Sequence[str]
) -> tuple[np.ndarray, np.ndarray]:
    """float64 [questions] each: exact matches, and F1 scores, of SQuAD 2.0."""

    def f1(right: list[str], predicted: list[str]) -> float:
        return overlap(right, predicted) if right and predicted else float(right == predicted)

    kept = [[text for text in texts if normalised_words(text)] or [""] for texts in answers]
    return np.array(exact_scores(kept, predictions)), np.array(best_of(f1, kept, predictions))


def best_threshold(
    scores: np.ndarray, has_answer: np.ndarray, is_empty: np.ndarray, no_answer: np.ndarray
) -> tuple[float, float]:
    """The best mean score that a threshold on `no_answer` reaches, and this threshold: a question with a higher
    probability counts as predicted to have no answer.

    Starts with no question answered, and answers one after the other, the least likely to have no answer first. The
    first of equally good thresholds counts, 0.0 where it is best to answer none.

    Args:
        scores: float64 [questions], of the predictions.
        has_answer: bool [questions].
        is_empty: bool [questions], whether the prediction is empty.
        no_answer: float64 [questions].
    """
    order = np.argsort(no_answer, kind="stable")
    # A wrongly answered question loses the point that it has as long as it is not answered.
    gains = np.where(has_answer, scores, np.where(is_empty, 0.0, -1.0))[order]
    # Added up in this order, as the script does, so that the last digit is the same.
    reached = np.cumsum(np.concatenate([[(~has_answer).sum()], gains]))
    best = int(reached.argmax())
    return float(reached[best]) / len(scores), float(no_answer[order][best - 1]) if best else 0.0


def best_f1_threshold(
    answers: Sequence[Sequence[str]], predictions: Sequence[str], no_answer: np.ndarray
) -> float:
    """The probability of having no answer above which it is best for the mean F1 to predict that there is none;
    arguments as of `unanswerable_metrics`."""
    _, f1 = question_scores(answers, predictions)
    has_answer, is_answered = (np.array([bool(each) for each in side]) for side in (answers, predictions))
    return best_threshold(f1, has_answer, ~is_answered, no_answer)[1]


def _mean(scores: np.ndarray) -> float:
    return sum(scores.tolist()) / len(scores) if len(scores) else 0.0
