"""Scores of answers where a question may have none, as SQuAD 2.0's evaluation script defines them (Rajpurkar et al.
2018, section 5; evaluate-v2.0).

They differ from SQuAD 1.1: answers of which nothing is left after normalisation do not count, a question without other
answers is answered rightly by an empty text alone, and an empty text has F1 1 with an empty answer.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pipeline.tune.metrics.squad import best_of, exact_scores, normalised_words, overlap

UNANSWERABLE_METRICS = (
    *("f1", "exact_match", "has_answer_f1", "has_answer_exact", "no_answer_f1", "no_answer_exact"),
    *("best_f1", "best_f1_thresh", "best_exact", "best_exact_thresh"),
)
"""Names of all scores, as shares of 1; the script calls some of them HasAns_f1, HasAns_exact and so on."""


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
    """float64 [questions] each: exact matches, and F1 scores."""
    kept = [[text for text in texts if normalised_words(text)] or [""] for texts in answers]
    return np.array(exact_scores(kept, predictions)), np.array(best_of(_overlap, kept, predictions))


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


def _overlap(right: list[str], predicted: list[str]) -> float:
    return overlap(right, predicted) if right and predicted else float(right == predicted)


def _mean(scores: np.ndarray) -> float:
    return sum(scores.tolist()) / len(scores) if len(scores) else 0.0
