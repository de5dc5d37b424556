"""From the best spans of windows to texts that answer questions (Devlin et al. 2019, sections 4.2 and 4.3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import expit

from pipeline.tune.forms.spans.settings import Question, SpanTaskConfig
from pipeline.tune.forms.spans.windows import Windows, text_of
from pipeline.tune.metrics.squad2 import best_f1_threshold


@dataclass(frozen=True, slots=True)
class Found:
    """A text that may answer a question; an empty one says that there is no answer."""

    text: str
    score: float
    """Sum of the scores of begin and end."""


@dataclass(frozen=True, slots=True)
class Answered:
    """Predictions for every question."""

    predictions: list[str]
    """Per question the predicted text; empty for no answer."""
    n_best: list[list[Found]]
    """Per question its best texts, the best first."""
    no_answer: np.ndarray
    """float64 [questions]: the probability of having no answer, against the best text."""


def answer_questions(
    config: SpanTaskConfig, questions: Sequence[Question], windows: Windows, outputs: np.ndarray
) -> Answered:
    """Gather the best texts of all windows of each question, and decide which questions have no answer.

    Args:
        outputs: float32 [windows, n_best + 1, 3], as SpanTask.outputs gives them.
    """
    n_best, nulls = _best_texts(questions, windows, outputs, config.n_best)
    best = [found[0].text for found in n_best]
    scores = np.array([found[0].score if found[0].text else -np.inf for found in n_best])
    no_answer = expit(nulls - scores)
    if config.answerable:
        return Answered(best, n_best, no_answer)
    threshold = config.no_answer_threshold()
    if threshold is None:
        threshold = best_f1_threshold([question.right for question in questions], best, no_answer)
    predictions = [
        "" if probability > threshold else text for text, probability in zip(best, no_answer, strict=True)
    ]
    with_null = [
        sorted([*filter(lambda found: found.text, texts), Found("", null)], key=lambda found: -found.score)
        for texts, null in zip(n_best, nulls.tolist(), strict=True)
    ]
    return Answered(predictions, with_null, no_answer)


def with_probabilities(found: Sequence[Found]) -> list[dict[str, Any]]:
    """Texts with their scores, and the softmax of these."""
    scores = np.array([each.score for each in found])
    weights = np.exp(scores - scores.max())
    shares = (weights / weights.sum()).tolist()
    return [
        {"text": each.text, "score": each.score, "probability": share}
        for each, share in zip(found, shares, strict=True)
    ]


def _best_texts(
    questions: Sequence[Question], windows: Windows, outputs: np.ndarray, count: int
) -> tuple[list[list[Found]], np.ndarray]:
    """Per question its best texts, an empty one where nothing was found, and float64 [questions], the lowest score that
    one of its windows gives to having no answer."""
    spans: list[list[tuple[float, int, int]]] = [[] for _ in questions]
    nulls = np.full(len(questions), np.inf)
    for window, rows in enumerate(outputs):
        shift = int(windows.first[window] - windows.begin[window])
        question = windows.question[window]
        spans[question] += [
            (float(score), int(first) + shift, int(last) + shift)
            for first, last, score in rows[:-1]
            if np.isfinite(score)
        ]
        nulls[question] = min(nulls[question], float(rows[-1, 2]))
    texts = [
        _texts(question, windows.offsets[number], found, count)
        for number, (question, found) in enumerate(zip(questions, spans, strict=True))
    ]
    return texts, nulls


def _texts(
    question: Question, offsets: np.ndarray, spans: Sequence[tuple[float, int, int]], count: int
) -> list[Found]:
    best: dict[str, Found] = {}
    for score, first, last in sorted(spans, key=lambda span: (-span[0], *span[1:])):
        text = text_of(question.context, offsets, first, last)
        if text and len(best) < count:
            best.setdefault(text, Found(text, score))
    return list(best.values()) or [Found("", 0.0)]
