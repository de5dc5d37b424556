"""Confidence intervals of metrics over evaluation examples: the percentile bootstrap (Efron and Tibshirani 1993,
chapter 13).

Every metric here is a function of sums over examples, so that a resample is a vector of how often each example was
drawn, and needs no second look at the predictions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

import numpy as np

from pipeline.samples.noise import Noise
from pipeline.tasks.metrics.entities import entities
from pipeline.tasks.metrics.texts import ROUGE_NAMES
from pipeline.tune.report.predictions import form_of, rouge_scores, span_scores
from pipeline.tune.scores import Line

NUM_RESAMPLES = 1000
CONFIDENCE = 0.95
_SAME = 1e-6
"""A metric that its sums do not reproduce as exactly as this has no interval."""


@dataclass(frozen=True, slots=True)
class Sums:
    """A metric as a function of sums over examples."""

    columns: np.ndarray
    """float64 [examples, columns]: what each example adds."""
    value: Callable[[np.ndarray], np.ndarray]
    """From sums [..., columns] to the metric [...]."""


def confidence_interval(
    metric: str, trainings: Sequence[tuple[Sequence[Line], float]], labels: Sequence[str]
) -> tuple[float, float] | None:
    """The 95% interval of the mean of a metric over trainings, for other evaluation examples of the same kind.

    All trainings see the same resamples, so that the interval says nothing about other seeds. The same predictions give
    the same interval.

    Args:
        trainings: of each its lines of predictions, for the same examples in the same order, and its metric.
        labels: names of the task's labels.

    Returns:
        None where the metric is no function of sums over examples, or where its value is another one than these
        predictions have.
    """
    found = []
    for lines, expected in trainings:
        sums = sums_of(metric, lines, labels)
        if sums is None or not abs(float(sums.value(sums.columns.sum(0))) - expected) < _SAME:
            return None
        found.append(sums)
    if not found or len({len(sums.columns) for sums in found}) > 1:
        return None
    values = resampled(found)
    low, high = np.quantile(values, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2]).tolist()
    return low, high


def resampled(trainings: Sequence[Sums], num_resamples: int = NUM_RESAMPLES) -> np.ndarray:
    """float64 [num_resamples]: the metric's mean over trainings, for examples drawn with replacement."""
    num_examples = len(trainings[0].columns)
    noise, examples = Noise.of("bootstrap"), np.arange(num_examples)
    totals = [np.empty((num_resamples, sums.columns.shape[1])) for sums in trainings]
    for number in range(num_resamples):
        drawn = noise.at(number, examples).integers(num_examples)
        counts = np.bincount(drawn, minlength=num_examples).astype(np.float64)
        for total, sums in zip(totals, trainings, strict=True):
            total[number] = counts @ sums.columns
    values = [sums.value(total) for sums, total in zip(trainings, totals, strict=True)]
    return np.mean(values, axis=0)


def sums_of(metric: str, lines: Sequence[Line], labels: Sequence[str]) -> Sums | None:
    """A metric of lines as a function of sums; None where it is no such function, or there are no lines."""
    make = _SUMS.get((form_of(lines[0]), metric)) if lines else None
    return make(lines, labels) if make else None


def _mean(scores: np.ndarray, counted: np.ndarray | float = 1.0) -> Sums:
    """The mean of scores of examples, where they are counted."""
    counts = np.broadcast_to(counted, scores.shape).astype(np.float64)
    return Sums(np.stack([scores * counts, counts], axis=1), _ratio_of_two)


def _ratio_of_two(sums: np.ndarray) -> np.ndarray:
    return _ratio(sums[..., 0], sums[..., 1])


def _ratio(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    """Quotients, 0 where there is nothing to divide by."""
    return np.divide(above, below, out=np.zeros(np.shape(above)), where=np.asarray(below) != 0)


def _accuracy(lines: Sequence[Line], labels: Sequence[str], group: str | None = None) -> Sums:
    """The accuracy of all examples, or of those of one group."""
    equal = np.array([float(line["label"] == line["prediction"]) for line in lines])
    return _mean(equal, np.array([group in (None, line.get("group")) for line in lines]))


def _by_label(value: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]):
    """A metric of how often each label is right and predicted, is right, and is predicted, each [..., labels]."""

    def make(lines: Sequence[Line], labels: Sequence[str]) -> Sums:
        right = np.array([[line["label"] == name for name in labels] for line in lines], dtype=np.float64)
        guessed = np.array(
            [[line["prediction"] == name for name in labels] for line in lines], dtype=np.float64
        )
        columns = np.concatenate([right * guessed, right, guessed], axis=1)

        def of_sums(sums: np.ndarray) -> np.ndarray:
            both, rights, guesses = np.split(sums, 3, axis=-1)
            return value(both, rights, guesses)

        return Sums(columns, of_sums)

    return make


def _f1_of_second(both: np.ndarray, right: np.ndarray, guessed: np.ndarray) -> np.ndarray:
    """F1 of label 1."""
    return _ratio(2 * both[..., 1], right[..., 1] + guessed[..., 1])


def _macro_f1(both: np.ndarray, right: np.ndarray, guessed: np.ndarray) -> np.ndarray:
    """Mean F1 of the labels that occur."""
    occurs = (right + guessed) > 0
    return _ratio(_ratio(2 * both, right + guessed).sum(-1), occurs.sum(-1))


def _matthews(both: np.ndarray, right: np.ndarray, guessed: np.ndarray) -> np.ndarray:
    """Matthews correlation of any number of labels (Gorodkin 2004); 0 where one side is constant."""
    count = right.sum(-1)
    covariance = both.sum(-1) * count - (right * guessed).sum(-1)
    spread = (count**2 - (right**2).sum(-1)) * (count**2 - (guessed**2).sum(-1))
    return _ratio(covariance, np.sqrt(spread))


def _pearson(lines: Sequence[Line], labels: Sequence[str]) -> Sums:
    right = np.array([line["label"] for line in lines], dtype=np.float64)
    guessed = np.array([line["prediction"] for line in lines], dtype=np.float64)
    # Around their means, so that sums of squares lose no digits.
    x, y = right - right.mean(), guessed - guessed.mean()

    def of_sums(sums: np.ndarray) -> np.ndarray:
        n, x, y, xx, yy, xy = np.moveaxis(sums, -1, 0)
        spread = (n * xx - x * x) * (n * yy - y * y)
        return _ratio(n * xy - x * y, np.sqrt(np.maximum(spread, 0)))

    return Sums(np.stack([np.ones_like(x), x, y, x * x, y * y, x * y], axis=1), of_sums)


def _mean_of(
    scores: Callable[[Sequence[Line], str], np.ndarray], metric: str
) -> Callable[[Sequence[Line], Sequence[str]], Sums]:
    """The mean of a metric of single lines."""
    return lambda lines, labels: _mean(scores(lines, metric))


def _tag_accuracy(lines: Sequence[Line], labels: Sequence[str]) -> Sums:
    rows = [
        (sum(a == b for a, b in zip(line["tags"], line["predictions"], strict=True)), len(line["tags"]))
        for line in lines
    ]
    return Sums(np.array(rows, dtype=np.float64), _ratio_of_two)


def _entity_f1(lines: Sequence[Line], labels: Sequence[str]) -> Sums:
    rows = []
    for line in lines:
        right, guessed = set(entities(line["tags"])), set(entities(line["predictions"]))
        rows.append((2 * len(right & guessed), len(right) + len(guessed)))
    return Sums(np.array(rows, dtype=np.float64), _ratio_of_two)


_SUMS: Mapping[tuple[str, str], Callable[[Sequence[Line], Sequence[str]], Sums]] = MappingProxyType(
    {
        ("label", "accuracy"): _accuracy,
        ("label", "accuracy_matched"): partial(_accuracy, group="matched"),
        ("label", "accuracy_mismatched"): partial(_accuracy, group="mismatched"),
        ("label", "f1"): _by_label(_f1_of_second),
        ("label", "f1_answers"): _by_label(_f1_of_second),
        ("label", "macro_f1"): _by_label(_macro_f1),
        ("label", "matthews"): _by_label(_matthews),
        ("number", "pearson"): _pearson,
        ("choice", "accuracy"): _accuracy,
        **{("span", metric): _mean_of(span_scores, metric) for metric in ("f1", "exact_match")},
        ("tags", "accuracy"): _tag_accuracy,
        ("tags", "f1"): _entity_f1,
        **{("text", metric): _mean_of(rouge_scores, metric) for metric in ROUGE_NAMES},
    }
)
"""By form of lines and name of the metric."""
