"""Scores of arms, compared with the order that a paper found, and scores without a network on the same examples.

Without a network there is the most frequent label, and words alone: of texts with labels a logistic regression on
counts of words and pairs of neighbours (scikit-learn's CountVectorizer and LogisticRegression with their defaults,
1,000 iterations); of words with tags, each word's most frequent tag.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict

from cluster.artefacts.errors import ConfigError
from pipeline.tune.config import FinetuneConfig
from pipeline.tune.report.bootstrap import CONFIDENCE, Sums, resampled, sums_of
from pipeline.tune.scores import ScoresDirectory
from pipeline.tune.updates import sample_examples

Verdict = Literal["same order", "opposite", "within the spread"]
_SAME = 1e-6


class Frozen(BaseModel):
    """A part of a ladder's result."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class ArmScore(Frozen):
    """An arm on a task."""

    arm: str
    values: dict[int, float]
    """The task's main metric by seed, as a share of 1."""
    mean: float
    std: float
    """Sample standard deviation over seeds (n - 1)."""


class Pair(Frozen):
    """Two arms on a task, the lower one of the paper first."""

    lower: str
    higher: str
    """The arm that scored higher in the paper."""
    difference: float
    """Mean of `higher` less mean of `lower`, as a share of 1."""
    low: float
    high: float
    """The 95% interval of the difference for other evaluation examples of the same kind: both arms see the same
    resamples."""
    spread: float
    """Standard deviation of a difference of two seeds: the root of the sum of both variances."""

    @property
    def verdict(self) -> Verdict:
        """A difference counts where it is larger than the seeds' spread and its interval leaves 0 out."""
        if abs(self.difference) <= self.spread or self.low <= 0 <= self.high:
            return "within the spread"
        return "same order" if self.difference > 0 else "opposite"


def arm_score(arm: str, values: Mapping[int, float]) -> ArmScore:
    """The mean and the spread of at least two seeds."""
    found = list(values.values())
    return ArmScore(arm=arm, values=dict(values), mean=statistics.fmean(found), std=statistics.stdev(found))


def compare(lower: ArmScore, higher: ArmScore, sums: Mapping[str, Sequence[Sums]]) -> Pair:
    """The difference between two arms, with its paired bootstrap interval.

    Args:
        sums: by arm, for each seed what the evaluation examples add to the metric.
    """
    differences = resampled(sums[higher.arm]) - resampled(sums[lower.arm])
    low, high = np.quantile(differences, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2]).tolist()
    return Pair(
        lower=lower.arm,
        higher=higher.arm,
        difference=higher.mean - lower.mean,
        low=low,
        high=high,
        spread=math.hypot(lower.std, higher.std),
    )


def sums_of_task(opened: ScoresDirectory, task: str) -> tuple[float, Sums]:
    """The score of a task, and what its evaluation examples add to it, from the saved predictions.

    Raises:
        ValueError: the metric is no function of sums, or the predictions have another score than was saved.
    """
    score = next(each for each in opened.scores if each.task == task)
    sums = sums_of(score.main_metric, opened.lines(score.trial), opened.labels.get(task, ()))
    if sums is None:
        raise ValueError(f"{score.main_metric} of {task} is no sum over examples")
    found = float(sums.value(sums.columns.sum(0)))
    if not abs(found - score.value) < _SAME:
        raise ValueError(f"the predictions of {task} in {opened.path} score {found}, not {score.value}")
    return score.value, sums


MAJORITY = "most frequent label"
WORDS = "words alone"


def floors_of(config: FinetuneConfig, task: str) -> dict[str, float]:
    """The main metric of predictions without a network by name, trained on the examples that fine-tuning reads.

    Raises:
        ConfigError: a ladder has no floor for tasks of this form.
    """
    settings: Any = config.tasks[task]
    if settings.form not in _PREDICT:
        raise ConfigError(
            f"The task {task} is of the form {settings.form}; ladders compare {' and '.join(_PREDICT)}.",
            next_step=f"leave {task} out of the comparisons",
        )
    data = settings.load()
    used = sample_examples(len(data.train), config.training_of(task).max_train_examples)
    train = [data.train[number] for number in used]
    predictions = _PREDICT[settings.form](train, data.evaluation, len(data.labels))
    metric = settings.metrics[0]
    return {name: settings.measure(data.evaluation, found)[metric] for name, found in predictions.items()}


def _of_texts(train: Sequence[Any], evaluation: Sequence[Any], num_labels: int) -> dict[str, np.ndarray]:
    """Scores of labels of each predictor, [examples, labels]."""
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.linear_model import LogisticRegression

    labels = [int(each.label) for each in train]
    counts = CountVectorizer(ngram_range=(1, 2))
    columns = counts.fit_transform(["\n".join(each.texts) for each in train])
    model = LogisticRegression(max_iter=1000).fit(columns, labels)
    guessed = model.predict(counts.transform(["\n".join(each.texts) for each in evaluation]))
    most = np.full(len(evaluation), np.bincount(labels).argmax())
    return {MAJORITY: np.eye(num_labels)[most], WORDS: np.eye(num_labels)[guessed]}


def _of_tags(train: Sequence[Any], evaluation: Sequence[Any], num_labels: int) -> dict[str, list[list[str]]]:
    """Tags of every word from each predictor."""
    by_word: dict[str, Counter[str]] = {}
    for sentence in train:
        for word, tag in zip(sentence.words, sentence.tags, strict=True):
            by_word.setdefault(word.lower(), Counter())[tag] += 1
    # The first in the alphabet among equally frequent tags.
    most = _most(sum(by_word.values(), Counter()))
    best = {word: _most(tags) for word, tags in by_word.items()}
    return {
        MAJORITY: [[most] * len(each.words) for each in evaluation],
        WORDS: [[best.get(word.lower(), most) for word in each.words] for each in evaluation],
    }


def _most(tags: Counter[str]) -> str:
    return min(tags, key=lambda tag: (-tags[tag], tag))


_PREDICT: Mapping[str, Callable[[Sequence[Any], Sequence[Any], int], Mapping[str, Any]]] = {
    "classification": _of_texts,
    "tags": _of_tags,
}
"""By form of task."""
